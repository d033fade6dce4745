// Worth of a state by its place in the tree.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/cache_config.h"
#include "nodes/node_pool.h"
#include "policy/eviction_item.h"

namespace tasuki::cache {

// Reads the nodes; owns nothing. Nodes above the asked one must be alive.
class StateWorth {
 public:
  StateWorth(const NodePool& nodes, const CacheConfig& shape)
      : nodes_(nodes),
        pages_per_slab_(shape.pages_per_slab),
        attention_cost_(shape.attention_cost),
        tiers_(shape.tiers),
        shelters_(shelters_of(shape.tiers, shape.slabs)) {}

  // Return the cost and gain of losing the state. REQUIRES: the node has one at its end.
  Worth of_checkpoint(const Node& node) const;
  // Return the weights common to its resident tails.
  TailWeighing weighing(const Node& node) const;
  // REQUIRES: the tail is resident, and its node was weighed so.
  Worth of_tail(const TailWeighing& weighing, const Tail& tail) const;

  // Return the one state to wait for the path's next request instead, if any. Call before the state
  // is dropped.
  std::optional<StateKey> heir_of_checkpoint(const Node& node) const;
  std::optional<StateKey> heir_of_tail(const Node& node) const;

 private:
  std::optional<StateKey> state_above(const Node& node) const;
  std::int64_t boundary_above(const Node& node) const;
  // Return the cost of restoring the state: a load from the next place that keeps it longer, or
  // prefill.
  double cost_of_loss(double prefill, TierBits below, std::int64_t pages) const;
  std::int64_t pages_alone(const Node& node) const;
  std::optional<StateKey> heir_above(const Node& node) const;

  const NodePool& nodes_;
  std::int64_t pages_per_slab_;
  double attention_cost_;
  std::vector<TierConfig> tiers_;
  TierBits shelters_;
};

}  // namespace tasuki::cache
