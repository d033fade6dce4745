// What a state is worth by its place in the tree. What hangs on nodes is in residency.cpp.
#include <algorithm>
#include <vector>

#include "cpp_cache/radix_tree.h"

namespace tasuki::cache {

namespace {

// Nodes looked at below a change: a wide subtree keeps a worth that is slightly old.
constexpr std::size_t kMostWeighed = 64;

bool continues(Tokens run, Tokens start) {
  return run.size() >= start.size() && std::ranges::equal(run.first(start.size()), start);
}

}  // namespace

// The deepest state above the node that a request for the node's path could resume from.
std::optional<StateRef> RadixTree::state_above(const Node& node) const {
  const Node* below = &node;
  while (!below->is_root()) {
    const Node* above = &this->node(*below->parent);
    const Tail* deepest = nullptr;
    for (const Tail& tail : above->tails) {
      if (!tail.resident() || !continues(below->tokens, tail.tokens)) continue;
      if (deepest == nullptr || tail.tokens.size() > deepest->tokens.size()) deepest = &tail;
    }
    if (deepest != nullptr) return StateRef{above->id, deepest->id};
    if (above->checkpoint) return StateRef{above->id, std::nullopt};
    below = above;
  }
  return std::nullopt;
}

std::optional<std::int64_t> RadixTree::long_prompt_through(Position position) const {
  const Node* node = &this->node(position.node);
  // At a fork, or a path's end, nobody leaves anew.
  if (position.depth == node->depth && node->children.size() != 1) return std::nullopt;
  for (std::size_t step = 0; step < kMostWeighed; ++step) {
    if (node->long_prompt_beyond && node->depth >= position.depth) {
      return node->depth + *node->long_prompt_beyond;
    }
    if (node->children.empty()) return std::nullopt;
    node = &this->node(node->children.begin()->node);
  }
  return std::nullopt;
}

// Pages that only the path to this node's end needs: its own, and those above up to the next state
// or fork.
std::int64_t RadixTree::pages_alone(const Node& node) const {
  auto pages = static_cast<std::int64_t>(node.pages.size());
  const Node* above = &node;
  while (!above->is_root()) {
    above = &this->node(*above->parent);
    if (above->is_root() || above->checkpoint || above->resident_children > 1 ||
        above->resident_tails() > 0) {
      break;
    }
    pages += static_cast<std::int64_t>(above->pages.size());
  }
  return pages;
}

Worth RadixTree::worth(const Node& node, const Checkpoint& state, bool is_tail) const {
  Worth worth;
  if (!policy_->learns()) return worth;
  const bool hosts_state = is_tail && node.checkpoint;
  std::int64_t above = hosts_state ? node.depth : 0;
  if (!hosts_state) {
    if (const auto fallback = state_above(node)) above = this->state(*fallback).boundary;
  }
  const auto from = static_cast<double>(above);
  const auto to = static_cast<double>(state.boundary);
  worth.gain = (to - from) * (1 + shape_.attention_cost * (to + from) / 2);
  worth.pages = shape_.pages_per_slab;
  if (!is_tail) worth.paths_below = node.resident_children + node.resident_tails();
  const std::int64_t tails = node.tails.empty() ? 0 : node.resident_tails();
  if (is_tail) {
    worth.pages += 1;
    if (!hosts_state && tails == 1 && node.resident_children == 0) worth.pages += pages_alone(node);
  } else if (tails == 0 && node.resident_children == 0) {
    worth.pages += pages_alone(node);
  }
  return worth;
}

std::optional<StateKey> RadixTree::heir_of(const Node& node, bool is_tail) const {
  if (!policy_->learns() || node.resident_children > 0) return std::nullopt;
  if (node.resident_tails() > (is_tail ? 1 : 0)) return std::nullopt;
  if (is_tail && node.checkpoint) return StateKey{node.id, std::nullopt};
  const auto fallback = state_above(node);
  if (!fallback) return std::nullopt;
  const Node* above = &node;
  while (above->id != fallback->node) {
    above = &this->node(*above->parent);
    if (above->resident_children > 1) return std::nullopt;
  }
  return StateKey{fallback->node, fallback->tail};
}

void RadixTree::weigh_below(const Node& top) {
  if (!policy_->learns()) return;
  std::vector<NodeId> order{top.id};
  for (std::size_t next = 0; next < order.size() && next < kMostWeighed; ++next) {
    const Node& each = node(order[next]);
    if (next > 0) {
      withdraw(each);
      list(each);
      if (each.checkpoint) continue;
    }
    for (const ChildEntry& child : each.children) {
      if (order.size() >= kMostWeighed) break;
      if (node(child.node).resident) order.push_back(child.node);
    }
  }
}

}  // namespace tasuki::cache
