// What a copy in a tier is worth by its place in the tree.
#pragma once

#include <cstdint>
#include <optional>

#include "core/cache_config.h"
#include "policy/eviction_item.h"
#include "tiers/copy_table.h"
#include "tree/radix_tree.h"

namespace tasuki::cache {

// As StateWorth, of what one tier holds: the loss of a state costs a load from the next place below
// that has it and keeps it longer, or the prefill from the nearest state above that this tier has.
// Owns nothing.
class TierWorth {
 public:
  TierWorth(const RadixTree& tree, const CopyTable& copies, const CacheConfig& config, TierId tier)
      : tree_(tree), copies_(copies), config_(config), shelters_(shelters_below(config, tier)) {}

  // REQUIRES: the tier holds the state.
  Worth of(const StateKey& key) const;
  // The one state of the tier that would wait for the next request on the path in its stead.
  std::optional<StateKey> heir_of(const StateKey& key) const;

 private:
  static TierBits shelters_below(const CacheConfig& config, TierId tier);
  // The deepest state of the tier from which a request for the state's path could resume instead.
  std::optional<StateKey> state_above(const StateKey& key) const;
  std::int64_t paths_below(const StateKey& key) const;
  // Pages that only the path to this state needs.
  std::int64_t pages_alone(const Node& node) const;

  const RadixTree& tree_;
  const CopyTable& copies_;
  const CacheConfig& config_;
  TierBits shelters_;
};

}  // namespace tasuki::cache
