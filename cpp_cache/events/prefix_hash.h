// Names of prefixes. Without the salt they reveal nothing of the tokens.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "core/ids.h"

namespace tasuki::cache {

// Names one prefix of one namespace. Equal in every process, on every machine of low byte order.
struct PrefixHash {
  std::uint64_t low = 0;
  std::uint64_t high = 0;

  auto operator<=>(const PrefixHash&) const = default;
  std::array<char, 16> bytes() const;  // low first, each lowest byte first
};

// Hashes the prefixes of one namespace, with SipHash-2-4 of 128 bits (Aumasson, Bernstein 2012):
//   key          = SipHash("tasuki prefix v1", salt)        never leaves the process
//   hash of ""   = SipHash(key, "")
//   hash of p+t  = SipHash(key, hash of p + t)              t as int32, lowest byte first
// Here p is whole pages, and t the next page or the fewer tokens of a tail. Only a holder of the
// salt can check a hash against a guess. The tree itself never trusts a hash.
class PrefixHasher {
 public:
  PrefixHasher() = default;
  explicit PrefixHasher(std::string_view salt);

  PrefixHash root() const;
  // REQUIRES: run is not empty, at most a page.
  PrefixHash next(const PrefixHash& prefix, Tokens run) const;
  // After each page of a run of whole pages.
  template <typename Each>
  PrefixHash over(PrefixHash prefix, Tokens run, Each each) const {
    constexpr auto kPage = static_cast<std::size_t>(kPageTokens);
    for (std::size_t at = 0; at < run.size(); at += kPage) {
      const PrefixHash parent = prefix;
      prefix = next(parent, run.subspan(at, kPage));
      each(parent, prefix);
    }
    return prefix;
  }

 private:
  PrefixHash key_;
};

}  // namespace tasuki::cache
