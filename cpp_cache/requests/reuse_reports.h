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

// Owns nothing. Decides nothing but which of a turn's two ends goes first.
class ReuseReports {
 public:
  // tiers: below the arena, if any.
  ReuseReports(const CacheConfig& config, RadixTree& tree, Tiers* tiers, CursorTable& cursors)
      : half_slot_tokens_(config.pages_per_slab * kPageTokens / 2),
        tree_(tree),
        tiers_(tiers),
        cursors_(cursors) {}

  // A request was admitted with `source`, and would have used what `found` lost were it still
  // there. Returns the turns of its conversation before it, as far as is known.
  std::int64_t used(const Found& found, const std::optional<StateKey>& source);
  // The allocation inserted a state: what that means for those that stand before it.
  void inserted(Allocation& allocation, const StateKey& state, const InsertedState& what);

 private:
  void put_on_probation(const StateKey& state);

  std::int64_t half_slot_tokens_;
  RadixTree& tree_;
  Tiers* tiers_;
  CursorTable& cursors_;
};

}  // namespace tasuki::cache
