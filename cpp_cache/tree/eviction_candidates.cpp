#include "tree/eviction_candidates.h"

#include <utility>
#include <vector>

namespace tasuki::cache {

namespace {

// Limit of nodes visited below a change: in a wide subtree the rest keeps a slightly old worth.
constexpr std::size_t kMostWeighed = 64;

EvictionItem checkpoint_item(const Node& node) {
  const Checkpoint& state = *node.checkpoint;
  return {EvictionKind::kCheckpoint, state.last_use, node.id, std::nullopt, state.probationary};
}

EvictionItem tail_item(const Node& node, const Tail& tail) {
  return {EvictionKind::kTail, tail.state->last_use, node.id, tail.id, tail.state->probationary};
}

bool is_loose(const Tail& tail) { return tail.resident() && tail.state->pins == 0; }

}  // namespace

EvictionCandidates::EvictionCandidates(std::unique_ptr<EvictionPolicy> policy, NodePool& nodes,
                                       const CacheConfig& shape)
    : policy_(std::move(policy)), nodes_(nodes), worth_(nodes, shape) {}

std::optional<EvictionItem> EvictionCandidates::kv_item(const Node& node) {
  const bool bare_leaf = !node.is_root() && node.resident && !node.is_protected() &&
                         node.children.empty() && !node.checkpoint && node.tails.resident() == 0;
  if (!bare_leaf) return std::nullopt;
  return EvictionItem{EvictionKind::kLeafPages, node.last_use, node.id, std::nullopt};
}

std::optional<EvictionItem> EvictionCandidates::state_item(const StateKey& state) const {
  const Node& node = nodes_[state.node];
  if (!state.tail) {
    if (!node.checkpoint || node.checkpoint->pins > 0) return std::nullopt;
    return checkpoint_item(node);
  }
  const Tail* const tail = node.tails.find(*state.tail);
  if (tail == nullptr || !is_loose(*tail)) return std::nullopt;
  return tail_item(node, *tail);
}

bool EvictionCandidates::lists_checkpoint(const Node& node) const {
  return policy_->contains(checkpoint_item(node));
}

bool EvictionCandidates::lists_tail(const Node& node, const Tail& tail) const {
  return policy_->contains(tail_item(node, tail));
}

void EvictionCandidates::withdraw(const Node& node, std::optional<TailId> tail) {
  if (const auto item = kv_item(node)) policy_->remove(*item);
  if (node.checkpoint && node.checkpoint->pins == 0) policy_->remove(checkpoint_item(node));
  if (!tail) return;
  const Tail& named = *node.tails.find(*tail);
  if (is_loose(named)) policy_->remove(tail_item(node, named));
}

void EvictionCandidates::list(Node& node, std::optional<TailId> tail) {
  const bool weighs = policy_->learns();
  if (const auto item = kv_item(node)) policy_->add(*item);
  if (node.checkpoint && node.checkpoint->pins == 0) {
    policy_->add(checkpoint_item(node), weighs ? worth_.of_checkpoint(node) : Worth{});
  }
  const bool weighs_tails = weighs && node.tails.resident() > 0;
  const TailWeighing weighing = weighs_tails ? worth_.weighing(node) : TailWeighing{};
  if (tail) {
    const Tail& named = *node.tails.find(*tail);
    if (is_loose(named)) {
      policy_->add(tail_item(node, named), weighs ? worth_.of_tail(weighing, named) : Worth{});
    }
  }
  if (weighs_tails && node.tails.weighed() != weighing) weigh_tails(node, weighing);
}

void EvictionCandidates::weigh_tails(Node& node, const TailWeighing& now) {
  for (const auto& [id, tail] : node.tails) {
    if (!is_loose(tail)) continue;
    const EvictionItem item = tail_item(node, tail);
    policy_->remove(item);
    policy_->add(item, worth_.of_tail(now, tail));
  }
  node.tails.set_weighed(now);
}

void EvictionCandidates::weigh_below(const Node& top) {
  if (!policy_->learns()) return;
  std::vector<NodeId> order{top.id};
  for (std::size_t next = 0; next < order.size() && next < kMostWeighed; ++next) {
    Node& each = nodes_[order[next]];
    if (next > 0) {
      withdraw(each);
      list(each);
      if (each.checkpoint) continue;
    }
    for (const ChildEntry child : each.children) {
      if (order.size() >= kMostWeighed) break;
      order.push_back(child.node);
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
