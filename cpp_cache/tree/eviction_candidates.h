// The tree's candidates for eviction.
#pragma once

#include <memory>
#include <optional>

#include "core/cache_config.h"
#include "nodes/node_pool.h"
#include "policy/eviction_policy.h"
#include "tree/state_worth.h"

namespace tasuki::cache {

// Owns the policy, and lists in it every unprotected item with its worth. Changes only the weights
// of nodes' tails. Before changing an item's protection or order a caller calls withdraw(). After
// it the caller calls list() and names the changed tail.
//
// Invariant: the listed tails of one node were weighed alike. A change of the node lists the others
// again only if their weight changed. Their weight changes if a state at or above the node comes or
// goes, or the second tail does. Cost of a change: O(log n) of the listed items, and the nodes up
// to the next state; all tails if their weight changed.
class EvictionCandidates {
 public:
  EvictionCandidates(std::unique_ptr<EvictionPolicy> policy, NodePool& nodes,
                     const CacheConfig& shape);

  EvictionPolicy& policy() { return *policy_; }
  const EvictionPolicy& policy() const { return *policy_; }

  void withdraw(const Node& node, std::optional<TailId> tail = std::nullopt);
  void list(Node& node, std::optional<TailId> tail = std::nullopt);
  // List the nearest states below again after a change of their worth.
  void weigh_below(const Node& top);

  // Report the heir of a state before the state is dropped.
  void pass_on_checkpoint(const Node& node);
  void pass_on_tail(const Node& node, TailId tail);

  // Return the node's KV if it may be evicted.
  static std::optional<EvictionItem> kv_item(const Node& node);
  // Return an existing state if it is unpinned.
  std::optional<EvictionItem> state_item(const StateKey& state) const;
  bool lists_checkpoint(const Node& node) const;
  bool lists_tail(const Node& node, const Tail& tail) const;

 private:
  void weigh_tails(Node& node, const TailWeighing& now);

  std::unique_ptr<EvictionPolicy> policy_;
  NodePool& nodes_;
  StateWorth worth_;
};

}  // namespace tasuki::cache
