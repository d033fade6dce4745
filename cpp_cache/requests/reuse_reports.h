// Reports to the policy how requests use the states of the tree.
#pragma once

#include <cstdint>
#include <optional>

#include "core/cache_config.h"
#include "core/ids.h"
#include "requests/allocation.h"
#include "requests/cursor_table.h"
#include "requests/matcher.h"
#include "tiers/tiers.h"
#include "tree/radix_tree.h"

namespace tasuki::cache {

// Owns nothing. Decides only the eviction order of a turn's two ends.
class ReuseReports {
 public:
  // tiers: below the arena, if any.
  ReuseReports(const CacheConfig& config, RadixTree& tree, Tiers* tiers, CursorTable& cursors)
      : half_slot_tokens_(config.pages_per_slab * kPageTokens / 2),
        tree_(tree),
        tiers_(tiers),
        cursors_(cursors) {}

  // Report a request admitted with `source`, without the lost states in `found`. Returns the known
  // number of earlier turns of its conversation.
  std::int64_t used(const Found& found, const std::optional<StateKey>& source);
  // Report an inserted state to the states before it.
  void inserted(Allocation& allocation, const StateKey& state, const InsertedState& what);

 private:
  void put_on_probation(const StateKey& state);

  std::int64_t half_slot_tokens_;
  RadixTree& tree_;
  Tiers* tiers_;
  CursorTable& cursors_;
};

}  // namespace tasuki::cache
