#include "tree/eviction_candidates.h"

#include <utility>
#include <vector>

namespace tasuki::cache {

namespace {

// Nodes looked at below a change: a wide subtree keeps a worth that is slightly old.
constexpr std::size_t kMostWeighed = 64;

EvictionItem checkpoint_item(const Node& node) {
  const Checkpoint& state = *node.checkpoint;
  return {EvictionKind::kCheckpoint, state.last_use, node.id, std::nullopt, state.probationary};
}

EvictionItem tail_item(const Node& node, const Tail& tail) {
  return {EvictionKind::kTail, tail.state->last_use, node.id, tail.id, tail.state->probationary};
}

}  // namespace

EvictionCandidates::EvictionCandidates(std::unique_ptr<EvictionPolicy> policy,
                                       const NodePool& nodes, const CacheConfig& shape)
    : policy_(std::move(policy)), nodes_(nodes), worth_(nodes, shape) {}

std::optional<EvictionItem> EvictionCandidates::kv_item(const Node& node) {
  const bool bare_leaf = !node.is_root() && node.resident && !node.is_protected() &&
                         node.resident_children == 0 && !node.checkpoint &&
                         node.resident_tails() == 0;
  if (!bare_leaf) return std::nullopt;
  return EvictionItem{EvictionKind::kLeafPages, node.last_use, node.id, std::nullopt};
}

bool EvictionCandidates::lists_checkpoint(const Node& node) const {
  return policy_->contains(checkpoint_item(node));
}

bool EvictionCandidates::lists_tail(const Node& node, const Tail& tail) const {
  return policy_->contains(tail_item(node, tail));
}

void EvictionCandidates::withdraw(const Node& node) {
  if (const auto item = kv_item(node)) policy_->remove(*item);
  if (node.checkpoint && node.checkpoint->pins == 0) policy_->remove(checkpoint_item(node));
  for (const Tail& tail : node.tails) {
    if (tail.resident() && tail.state->pins == 0) policy_->remove(tail_item(node, tail));
  }
}

void EvictionCandidates::list(const Node& node) {
  const bool weighs = policy_->learns();
  if (const auto item = kv_item(node)) policy_->add(*item);
  if (node.checkpoint && node.checkpoint->pins == 0) {
    policy_->add(checkpoint_item(node), weighs ? worth_.of_checkpoint(node) : Worth{});
  }
  for (const Tail& tail : node.tails) {
    if (tail.resident() && tail.state->pins == 0) {
      policy_->add(tail_item(node, tail), weighs ? worth_.of_tail(node, tail) : Worth{});
    }
  }
}

void EvictionCandidates::weigh_below(const Node& top) {
  if (!policy_->learns()) return;
  std::vector<NodeId> order{top.id};
  for (std::size_t next = 0; next < order.size() && next < kMostWeighed; ++next) {
    const Node& each = nodes_[order[next]];
    if (next > 0) {
      withdraw(each);
      list(each);
      if (each.checkpoint) continue;
    }
    for (const ChildEntry& child : each.children) {
      if (order.size() >= kMostWeighed) break;
      if (nodes_[child.node].resident) order.push_back(child.node);
    }
  }
}

void EvictionCandidates::pass_on_checkpoint(const Node& node) {
  if (!policy_->learns()) return;
  if (const auto heir = worth_.heir_of_checkpoint(node)) {
    policy_->inherited({node.id, std::nullopt}, *heir);
  }
}

void EvictionCandidates::pass_on_tail(const Node& node, TailId tail) {
  if (!policy_->learns()) return;
  if (const auto heir = worth_.heir_of_tail(node)) policy_->inherited({node.id, tail}, *heir);
}

}  // namespace tasuki::cache
