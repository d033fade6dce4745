// What of the tree may be evicted.
#pragma once

#include <memory>
#include <optional>

#include "core/cache_config.h"
#include "nodes/node_pool.h"
#include "policy/eviction_policy.h"
#include "tree/state_worth.h"

namespace tasuki::cache {

// Owns the policy, and lists in it every item that nothing protects, with its worth. Does not
// change nodes. Whoever changes what decides whether an item of a node may be evicted, or when,
// calls withdraw() before and list() after.
class EvictionCandidates {
 public:
  EvictionCandidates(std::unique_ptr<EvictionPolicy> policy, const NodePool& nodes,
                     const CacheConfig& shape);

  EvictionPolicy& policy() { return *policy_; }
  const EvictionPolicy& policy() const { return *policy_; }

  void withdraw(const Node& node);
  void list(const Node& node);
  // Lists the nearest states below again, whose worth a change here altered.
  void weigh_below(const Node& top);

  // A state is about to be dropped: reports who waits for its requests instead.
  void pass_on_checkpoint(const Node& node);
  void pass_on_tail(const Node& node, TailId tail);

  // The node's KV, where it may be evicted.
  static std::optional<EvictionItem> kv_item(const Node& node);
  bool lists_checkpoint(const Node& node) const;
  bool lists_tail(const Node& node, const Tail& tail) const;

 private:
  std::unique_ptr<EvictionPolicy> policy_;
  const NodePool& nodes_;
  StateWorth worth_;
};

}  // namespace tasuki::cache
