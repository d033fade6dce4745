#include "tree/state_worth.h"

#include <algorithm>

#include "core/prefill_cost.h"

namespace tasuki::cache {

// Return the deepest state above the node usable by a request for the node's path.
std::optional<StateKey> StateWorth::state_above(const Node& node) const {
  const Node* below = &node;
  while (!below->is_root()) {
    const Node* above = &nodes_[*below->parent];
    const Tail* deepest = nullptr;
    above->tails.for_each_resident_start(below->tokens, [&](const Tail& tail) { deepest = &tail; });
    if (deepest != nullptr) return StateKey{above->id, deepest->id};
    if (above->checkpoint) return StateKey{above->id, std::nullopt};
    below = above;
  }
  return std::nullopt;
}

std::int64_t StateWorth::boundary_above(const Node& node) const {
  const auto fallback = state_above(node);
  return fallback ? nodes_[fallback->node].state(fallback->tail).boundary : 0;
}

double StateWorth::cost_of_loss(double prefill, TierBits below, std::int64_t pages) const {
  const auto kept = static_cast<TierBits>(below & shelters_);
  if (kept == 0) return prefill;
  const TierConfig& next = tiers_[raw(nearest_of(kept))];
  return std::min(prefill,
                  next.fixed_cost + next.slot_cost + next.page_cost * static_cast<double>(pages));
}

// Return the number of pages needed only by the path to this node's end. These are its own pages,
// and those above up to the next state or fork.
std::int64_t StateWorth::pages_alone(const Node& node) const {
  auto pages = static_cast<std::int64_t>(node.pages.size());
  const Node* above = &node;
  while (!above->is_root()) {
    above = &nodes_[*above->parent];
    if (above->is_root() || above->checkpoint || above->resident_children() > 1 ||
        above->tails.resident() > 0) {
      break;
    }
    pages += static_cast<std::int64_t>(above->pages.size());
  }
  return pages;
}

Worth StateWorth::of_checkpoint(const Node& node) const {
  Worth worth;
  worth.paths_below = node.resident_children() + node.tails.resident();
  const std::int64_t pages = worth.paths_below == 0 ? pages_alone(node) : 0;
  worth.pages = pages_per_slab_ + pages;
  worth.gain = cost_of_loss(
      prefill_between(attention_cost_, boundary_above(node), node.checkpoint->boundary),
      node.checkpoint_below.tiers, pages);
  return worth;
}

TailWeighing StateWorth::weighing(const Node& node) const {
  const bool is_alone = !node.checkpoint && node.children.empty() && node.tails.resident() == 1;
  return {node.checkpoint ? node.depth : boundary_above(node), is_alone ? pages_alone(node) : 0};
}

Worth StateWorth::of_tail(const TailWeighing& weighing, const Tail& tail) const {
  Worth worth;
  worth.gain = cost_of_loss(prefill_between(attention_cost_, weighing.above, tail.state->boundary),
                            tail.below.tiers, weighing.pages_alone + 1);
  worth.pages = pages_per_slab_ + 1 + weighing.pages_alone;
  return worth;
}

std::optional<StateKey> StateWorth::heir_of_checkpoint(const Node& node) const {
  if (!node.children.empty() || node.tails.resident() > 0) return std::nullopt;
  return heir_above(node);
}

std::optional<StateKey> StateWorth::heir_of_tail(const Node& node) const {
  if (!node.children.empty() || node.tails.resident() > 1) return std::nullopt;
  if (node.checkpoint) return StateKey{node.id, std::nullopt};
  return heir_above(node);
}

std::optional<StateKey> StateWorth::heir_above(const Node& node) const {
  const auto fallback = state_above(node);
  if (!fallback) return std::nullopt;
  const Node* above = &node;
  while (above->id != fallback->node) {
    above = &nodes_[*above->parent];
    if (above->resident_children() > 1) return std::nullopt;
  }
  return fallback;
}

}  // namespace tasuki::cache
