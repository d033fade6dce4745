#include "events/prefix_hash.h"

#include <bit>
#include <cstring>

namespace tasuki::cache {

namespace {

static_assert(std::endian::native == std::endian::little,
              "tokens are hashed as they lie in memory");

class SipHash {
 public:
  explicit SipHash(const PrefixHash& key)
      : v0_(key.low ^ 0x736f6d6570736575ULL),
        v1_(key.high ^ 0x646f72616e646f6dULL ^ 0xee),
        v2_(key.low ^ 0x6c7967656e657261ULL),
        v3_(key.high ^ 0x7465646279746573ULL) {}

  // REQUIRES: the bytes absorbed before are a multiple of 8.
  void absorb(const void* data, std::size_t size) {
    const auto* bytes = static_cast<const char*>(data);
    total_ += size;
    for (; size >= 8; size -= 8, bytes += 8) {
      std::uint64_t word = 0;
      std::memcpy(&word, bytes, 8);
      mix(word);
    }
    std::memcpy(&rest_, bytes, size);
  }

  PrefixHash finish() {
    mix(rest_ | (static_cast<std::uint64_t>(total_) << 56));
    v2_ ^= 0xee;
    const std::uint64_t low = squeeze();
    v1_ ^= 0xdd;
    return {low, squeeze()};
  }

 private:
  void mix(std::uint64_t word) {
    v3_ ^= word;
    round();
    round();
    v0_ ^= word;
  }
  std::uint64_t squeeze() {
    for (int i = 0; i < 4; ++i) round();
    return v0_ ^ v1_ ^ v2_ ^ v3_;
  }
  void round() {
    v0_ += v1_;
    v2_ += v3_;
    v1_ = std::rotl(v1_, 13) ^ v0_;
    v3_ = std::rotl(v3_, 16) ^ v2_;
    v0_ = std::rotl(v0_, 32);
    v2_ += v1_;
    v0_ += v3_;
    v1_ = std::rotl(v1_, 17) ^ v2_;
    v3_ = std::rotl(v3_, 21) ^ v0_;
    v2_ = std::rotl(v2_, 32);
  }

  std::uint64_t v0_, v1_, v2_, v3_;
  std::uint64_t rest_ = 0;  // last bytes of an incomplete word
  std::size_t total_ = 0;
};

constexpr char kDomain[] = "tasuki prefix v1";

PrefixHash domain() {
  PrefixHash key;
  static_assert(sizeof kDomain - 1 == sizeof key);
  std::memcpy(&key, kDomain, sizeof key);
  return key;
}

}  // namespace

std::array<char, 16> PrefixHash::bytes() const {
  std::array<char, 16> out{};
  std::memcpy(out.data(), &low, 8);
  std::memcpy(out.data() + 8, &high, 8);
  return out;
}

PrefixHasher::PrefixHasher(std::string_view salt) {
  SipHash hash(domain());
  hash.absorb(salt.data(), salt.size());
  key_ = hash.finish();
}

PrefixHash PrefixHasher::root() const { return SipHash(key_).finish(); }

PrefixHash PrefixHasher::next(const PrefixHash& prefix, Tokens run) const {
  SipHash hash(key_);
  hash.absorb(&prefix, sizeof prefix);
  hash.absorb(run.data(), run.size_bytes());
  return hash.finish();
}

}  // namespace tasuki::cache
