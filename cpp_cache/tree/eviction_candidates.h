// What of the tree may be evicted.
#pragma once

#include <memory>
#include <optional>

#include "core/cache_config.h"
#include "nodes/node_pool.h"
#include "policy/eviction_policy.h"
#include "tree/state_worth.h"

namespace tasuki::cache {

// Owns the policy, and lists in it every item that nothing protects, with its worth. Changes of
// nodes only what their tails were weighed by. Whoever changes what decides whether an item of a
// node may be evicted, or when, calls withdraw() before and list() after, and names the tail whose
// item changes.
//
// Invariant: what is listed of one node's tails was weighed alike, so that a change of the node
// lists the others again only where that changed: a state at or above the node came or went, or
// the second tail did. Cost of a change: O(log n) of what is listed, and the nodes up to the next
// state; where tails are weighed otherwise, all of them.
class EvictionCandidates {
 public:
  EvictionCandidates(std::unique_ptr<EvictionPolicy> policy, NodePool& nodes,
                     const CacheConfig& shape);

  EvictionPolicy& policy() { return *policy_; }
  const EvictionPolicy& policy() const { return *policy_; }

  void withdraw(const Node& node, std::optional<TailId> tail = std::nullopt);
  void list(Node& node, std::optional<TailId> tail = std::nullopt);
  // Lists the nearest states below again, whose worth a change here altered.
  void weigh_below(const Node& top);

  // A state is about to be dropped: reports who waits for its requests instead.
  void pass_on_checkpoint(const Node& node);
  void pass_on_tail(const Node& node, TailId tail);

  // The node's KV, where it may be evicted.
  static std::optional<EvictionItem> kv_item(const Node& node);
  // A state that stands, where nobody pins it.
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
