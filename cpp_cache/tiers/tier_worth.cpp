#include "tiers/tier_worth.h"

#include <algorithm>

#include "core/prefill_cost.h"

namespace tasuki::cache {

TierBits TierWorth::shelters_below(const CacheConfig& config, TierId tier) {
  const auto nearer = static_cast<TierBits>((1U << (raw(tier) + 1)) - 1);
  return static_cast<TierBits>(shelters_of(config.tiers, config.tiers[raw(tier)].slabs) & ~nearer);
}

std::optional<StateKey> TierWorth::state_above(const StateKey& key) const {
  const Node* below = &tree_.node(key.node);
  if (key.tail && copies_.state({key.node, std::nullopt}) != nullptr) {
    return StateKey{key.node, std::nullopt};
  }
  while (!below->is_root()) {
    const Node* const above = &tree_.node(*below->parent);
    const NodeCopies* const held = copies_.find(above->id);
    if (held != nullptr && !held->tails.empty()) {
      std::optional<StateKey> deepest;
      std::size_t longest = 0;
      above->tails.for_each_start(below->tokens, [&](const Tail& tail) {
        if (tail.tokens.size() <= longest || !held->tails.contains(tail.id)) return;
        longest = tail.tokens.size();
        deepest = StateKey{above->id, tail.id};
      });
      if (deepest) return deepest;
    }
    if (held != nullptr && held->checkpoint) return StateKey{above->id, std::nullopt};
    below = above;
  }
  return std::nullopt;
}

std::int64_t TierWorth::paths_below(const StateKey& key) const {
  const NodeCopies& held = *copies_.find(key.node);
  const auto tails = static_cast<std::int64_t>(held.tails.size());
  if (!key.tail) return held.children + tails;
  // A tail has nothing below it; other entries of its node need the path too.
  return held.children + tails - 1 + (held.checkpoint ? 1 : 0);
}

std::int64_t TierWorth::pages_alone(const Node& node) const {
  std::int64_t pages = 0;
  for (const Node* above = &node; !above->is_root(); above = &tree_.node(*above->parent)) {
    const NodeCopies& held = *copies_.find(above->id);
    if (above != &node && (held.children > 1 || held.holds_states())) break;
    pages += static_cast<std::int64_t>(held.run.pages.size());
  }
  return pages;
}

Worth TierWorth::of(const StateKey& key) const {
  const StateCopy& copy = *copies_.state(key);
  const auto fallback = state_above(key);
  const std::int64_t from = fallback ? copies_.state(*fallback)->held.boundary : 0;
  Worth worth;
  const std::int64_t others = paths_below(key);
  const std::int64_t pages =
      (key.tail ? 1 : 0) + (others == 0 ? pages_alone(tree_.node(key.node)) : 0);
  worth.paths_below = key.tail ? 0 : others;
  worth.pages = config_.pages_per_slab + pages;
  worth.gain = prefill_between(config_.attention_cost, from, copy.held.boundary);
  const auto kept = static_cast<TierBits>(tree_.state_below(key).tiers & shelters_);
  if (kept != 0) {
    const TierConfig& next = config_.tiers[raw(nearest_of(kept))];
    worth.gain = std::min(
        worth.gain, next.fixed_cost + next.slot_cost + next.page_cost * static_cast<double>(pages));
  }
  return worth;
}

std::optional<StateKey> TierWorth::heir_of(const StateKey& key) const {
  const NodeCopies& held = *copies_.find(key.node);
  const auto tails = static_cast<std::int64_t>(held.tails.size());
  if (held.children > 0 || tails > (key.tail ? 1 : 0)) return std::nullopt;
  const auto heir = state_above(key);
  if (!heir) return std::nullopt;
  for (NodeId at = key.node; at != heir->node;) {
    at = *tree_.node(at).parent;
    if (copies_.find(at)->children > 1) return std::nullopt;
  }
  return heir;
}

}  // namespace tasuki::cache
