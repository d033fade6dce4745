// Index of usable prefixes by node of a fleet, from the events of their `usable` streams.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/ids.h"
#include "events/prefix_hash.h"
#include "nodes/compact_vector.h"

namespace tasuki::cache {

enum class FleetNode : std::uint16_t {};  // a number given by the caller

// A node, and the number of a prompt's tokens it need not compute.
struct Holder {
  FleetNode node;
  std::int64_t tokens;
};

// A prefix of a prompt: its first `tokens` tokens have this name.
struct Beginning {
  std::int64_t tokens;
  std::uint64_t name;
};

// Results of one pass over a prompt's tokens, for the choice of a node.
struct LookUp {
  std::vector<Holder> holders;
  std::vector<Beginning> beginnings;
};

// Owns names of prefixes, never tokens: about 70 bytes per checkpoint. A prompt is looked up from
// its deep end, one probe per page, in all nodes at once. The answer is a hint. A name is kept as
// 64 of its 128 bits, the part inside a page as 24. So an answer may be wrong once in 2^24.
//
// Invariants:
// 1. A checkpoint is listed under the whole pages before its end, once per node.
// 2. A list is not empty: the last holder takes it along.
// 3. A node has at most kMostOfAPlace entries in a list, so lists stay short enough for a linear
//    search.
class FleetIndex {
 public:
  static constexpr std::size_t kMostOfAPlace = 64;

  // Store a name. prefix: of `tokens` tokens; parent: of the whole pages before its last page or
  // part of one. A listed name is unchanged; beyond its list's limit it is left out.
  void store(FleetNode node, const PrefixHash& prefix, const PrefixHash& parent,
             std::int64_t tokens);
  // Remove a name, if it is listed.
  void remove(FleetNode node, const PrefixHash& prefix, const PrefixHash& parent,
              std::int64_t tokens);
  // Forget all names of one node. Visits all entries: 20 ms at a million checkpoints.
  void forget(FleetNode node);

  // Return the holders, and at most 40 of the prompt's prefixes, without the last token. They end
  // at each 512 tokens and, from 8K on, at each eighth of the depth more, up to 32K.
  LookUp look_up(Tokens prompt, std::string_view salt, std::size_t enough,
                 std::uint64_t seed) const;

  // Return the deepest holders of a prefix of the prompt, deepest first, each node once, until
  // there are `enough` of them. One token is left to compute. `seed` orders holders of equal depth,
  // so a prefix common to all burdens all nodes.
  std::vector<Holder> holders(Tokens prompt, std::string_view salt, std::size_t enough,
                              std::uint64_t seed) const {
    return look_up(prompt, salt, enough, seed).holders;
  }

  std::int64_t checkpoints() const { return checkpoints_; }

 private:
  struct Entry {
    FleetNode node;
    std::uint8_t inside;  // tokens behind the whole pages
    std::uint32_t check;  // check bits of these tokens' name; 0 without tokens

    bool operator==(const Entry&) const = default;
  };
  using Entries = CompactVector<Entry>;
  struct Named;  // a prompt with the names of its whole pages

  std::vector<Holder> holders_of(const Named& prompt, std::size_t enough, std::uint64_t seed) const;

  static std::uint64_t place(const PrefixHash& prefix, const PrefixHash& parent,
                             std::int64_t tokens);
  static Entry entry(FleetNode node, const PrefixHash& prefix, std::int64_t tokens);

  std::unordered_map<std::uint64_t, Entries> by_pages_;
  std::int64_t checkpoints_ = 0;
};

}  // namespace tasuki::cache
