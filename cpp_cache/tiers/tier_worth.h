// Worth of a tier's copy by its place in the tree.
#pragma once

#include <cstdint>
#include <optional>

#include "core/cache_config.h"
#include "policy/eviction_item.h"
#include "tiers/copy_table.h"
#include "tree/radix_tree.h"

namespace tasuki::cache {

// Worth of states in one tier; otherwise as StateWorth. The loss of a state costs a load from the
// next larger place below with a copy. Without one it costs the prefill from the nearest state
// above in this tier. Owns nothing.
class TierWorth {
 public:
  TierWorth(const RadixTree& tree, const CopyTable& copies, const CacheConfig& config, TierId tier)
      : tree_(tree), copies_(copies), config_(config), shelters_(shelters_below(config, tier)) {}

  // REQUIRES: the tier holds the state.
  Worth of(const StateKey& key) const;
  // Return the one state of the tier to wait for the path's next request instead.
  std::optional<StateKey> heir_of(const StateKey& key) const;

 private:
  static TierBits shelters_below(const CacheConfig& config, TierId tier);
  // Return the deepest state of the tier usable instead by a request for the state's path.
  std::optional<StateKey> state_above(const StateKey& key) const;
  std::int64_t paths_below(const StateKey& key) const;
  // Return the number of pages needed by the path to this state only.
  std::int64_t pages_alone(const Node& node) const;

  const RadixTree& tree_;
  const CopyTable& copies_;
  const CacheConfig& config_;
  TierBits shelters_;
};

}  // namespace tasuki::cache
