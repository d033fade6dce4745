// Match of a prompt: cached tokens, usable tokens, and reasons for the rest.
#pragma once

#include <cstdint>
#include <memory_resource>
#include <optional>
#include <string_view>
#include <vector>

#include "core/cache_config.h"
#include "core/match.h"
#include "requests/allocation_table.h"
#include "tree/radix_tree.h"

namespace tasuki::cache {

// Place of a stored state, and the position of an allocation loading it.
struct StoredPlace {
  StateKey state;
  std::optional<Position> arena;  // end of the path's KV in the arena; nullopt: the root
};

// A match with the places to pin by an allocation. Valid until the tree changes.
struct Found {
  Match match;
  std::optional<StateKey> source;     // state at usable_tokens; nullopt: none
  Position usable;                    // end of the whole pages below source. REQUIRES: source
  std::optional<StateKey> evicted;    // a deeper state that would have served
  std::optional<Position> kv;         // end of the KV in whole pages at or before prompt - 1
  std::optional<Position> known;      // end of the whole pages seen before, evicted ones included
  std::int64_t standing = 0;          // tokens of known that still exist
  std::int64_t evicted_boundary = 0;  // tokens covered by `evicted`
  std::vector<StoredPlace> stored{};  // places of match.stored
};

// Owns nothing; changes nothing. Does not know ids' owners.
class Matcher {
 public:
  Matcher(const RadixTree& tree, const AllocationTable& allocations,
          const std::vector<TierConfig>& tiers)
      : tree_(tree), allocations_(allocations), tiers_(tiers) {}

  // Find the prompt's match. `start`: a position on the prompt's own path; earlier tokens are not
  // compared. REQUIRES: prompt is not empty; start, if any, is alive and of this salt.
  Found find(Tokens prompt, std::string_view salt, std::optional<Position> start) const;

 private:
  struct Walk {
    std::pmr::vector<NodeId> path;  // from the root down
    std::int64_t matched = 0;       // whole pages, ghosts included
    std::int64_t resident = 0;      // whole pages with KV in the arena
    std::int64_t standing = 0;      // whole pages with KV in the arena or a tier
  };
  struct Survey;

  // memory: of its path.
  Walk walk(Tokens prompt, NodeId root, std::optional<Position> start,
            std::pmr::memory_resource& memory) const;
  Survey survey(Tokens prompt, const Walk& walk) const;
  // Add states below the arena deeper than `usable`, the deepest first.
  void add_stored(Tokens prompt, const Walk& walk, std::int64_t usable, Found& found) const;
  void add_stored(const StateKey& key, std::int64_t boundary, const Walk& walk, Found& found) const;
  std::int64_t partial_page(Tokens prompt, const Walk& walk) const;
  std::int64_t in_flight_end(Tokens prompt, const Walk& walk) const;

  const RadixTree& tree_;
  const AllocationTable& allocations_;
  const std::vector<TierConfig>& tiers_;
};

}  // namespace tasuki::cache
