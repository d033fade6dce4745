#include "cache/shadow_cache.h"

#include <algorithm>
#include <vector>

namespace tasuki::cache {

double ShadowCache::serve(const Served& served) {
  cache_.advance_to(served.now_ms);
  const auto prompt = Tokens(served.tokens).first(static_cast<std::size_t>(served.prompt_tokens));
  const AllocationTerms terms{static_cast<std::int64_t>(served.tokens.size()), 1, std::nullopt};
  // Only the real arena can hold this prompt.
  if (terms.capacity_tokens > cache_.capacity_tokens(1)) return 0;
  const auto id = cache_.allocate(prompt, served.salt, terms);
  if (!id) return 0;
  const Match match = cache_.allocation(*id).match;
  const auto usable = static_cast<double>(match.usable_tokens);
  cache_.append(*id, Tokens(served.tokens).subspan(prompt.size()));

  std::vector<InsertedState> states = served.states;
  if (match.branch_tokens) {
    states.push_back({*match.branch_tokens, CheckpointKind::kBranch, TurnHint::kUnknown});
  }
  std::ranges::stable_sort(states, {}, &InsertedState::boundary);
  for (const InsertedState& state : states) {
    if (state.boundary <= match.usable_tokens) continue;
    const bool is_last = state.boundary == states.back().boundary;
    const std::optional<SlotId> slot =
        is_last ? cache_.allocation(*id).working_slots.front() : cache_.take_checkpoint_slot(*id);
    if (is_last) {
      cache_.insert(*id, state.boundary, slot, state.kind, state.hint);
      break;
    }
    if (slot) cache_.insert_midway(*id, state.boundary, *slot, state.kind, state.hint);
  }
  cache_.release(*id);
  cache_.drain_moves();
  return usable * (1 + cache_.config().attention_cost * usable / 2);
}

}  // namespace tasuki::cache
