#include "requests/reuse_reports.h"

#include <algorithm>

namespace tasuki::cache {

std::int64_t ReuseReports::used(const Found& found, const std::optional<StateKey>& source) {
  EvictionPolicy& policy = tree_.policy();
  if (!policy.learns()) return 0;
  std::int64_t turns = 0;
  const auto use = [&](const StateKey& key) {
    policy.used(key);
    turns = std::max(turns, policy.turns(key));
  };
  if (source) use(*source);
  if (!found.evicted) return turns;
  const StateKey stands_in = policy.waiting_for(*found.evicted);
  if (source && stands_in == *source) return turns;
  use(stands_in);
  policy.superseded(stands_in);
  if (stands_in.tail) tree_.weigh_again(stands_in.node);
  return turns;
}

void ReuseReports::put_on_probation(const StateKey& state) {
  tree_.put_on_probation(state);
  if (tiers_ != nullptr) tiers_->put_on_probation(state);
}

void ReuseReports::inserted(Allocation& allocation, const StateKey& state,
                            const InsertedState& what) {
  EvictionPolicy& policy = tree_.policy();
  if (allocation.latest_state && *allocation.latest_state != state) {
    policy.superseded(*allocation.latest_state);
  }
  allocation.latest_state = state;
  if (allocation.cursor && what.kind == CheckpointKind::kTurnEnd) {
    cursors_.end_turn(*allocation.cursor, state);
  }
  // Below half a slot's worth of tokens the slot saves less than the KV it displaces. The same
  // holds for a prompt's end less than a page before a message's.
  const bool is_prompt_end = what.kind == CheckpointKind::kPromptEnd ||
                             (what.kind == CheckpointKind::kMessageEnd && !allocation.prompt_state);
  if (what.boundary < half_slot_tokens_ || what.kind == CheckpointKind::kInterior ||
      (what.kind == CheckpointKind::kMessageEnd && !is_prompt_end)) {
    put_on_probation(state);
  }
  if (is_prompt_end) allocation.prompt_state = state;
  if (what.kind != CheckpointKind::kTurnEnd || !allocation.prompt_state) return;
  const StateKey prompt_end = *allocation.prompt_state;
  if (what.hint != TurnHint::kUnknown) policy.hinted(prompt_end, what.hint);
  // Both ends of a short answer serve the next turn: its own end saves least.
  if (prompt_end == state || !tree_.is_resident(prompt_end)) return;
  const bool is_short = what.boundary - tree_.state(prompt_end).boundary < half_slot_tokens_;
  put_on_probation(is_short ? state : prompt_end);
}

}  // namespace tasuki::cache
