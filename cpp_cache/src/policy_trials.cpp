#include "cpp_cache/policy_trials.h"

#include <algorithm>
#include <utility>

#include "cpp_cache/hybrid_tree.h"

namespace tasuki::cache {

namespace {

constexpr double kFade = 0.999;  // a request: the last thousand decide
constexpr double kLead = 1.02;
constexpr std::int64_t kRequestsToCompare = 64;

}  // namespace

PolicyTrials::PolicyTrials(const TreeConfig& config) : attention_cost_(config.attention_cost) {
  for (const PolicyKind policy : {PolicyKind::kValue, PolicyKind::kLru}) {
    TreeConfig shadow = config;
    shadow.policy = policy;
    trials_.push_back({policy, std::make_unique<HybridTree>(shadow)});
  }
}

PolicyTrials::~PolicyTrials() = default;

void PolicyTrials::serve(const Served& served) {
  for (Trial& trial : trials_) serve(trial, served);
  if (++served_ % kRequestsToCompare == 0) compare();
}

void PolicyTrials::serve(Trial& trial, const Served& served) {
  HybridTree& tree = *trial.tree;
  tree.advance_to(served.now_ms);
  trial.saved *= kFade;
  const auto prompt = Tokens(served.tokens).first(static_cast<std::size_t>(served.prompt_tokens));
  const LeaseTerms terms{static_cast<std::int64_t>(served.tokens.size()), 1, 0, std::nullopt};
  const auto id = tree.lease(prompt, served.salt, terms);
  if (!id) return;
  const Match match = tree.lease_of(*id).match;
  const auto usable = static_cast<double>(match.usable_tokens);
  trial.saved += usable * (1 + attention_cost_ * usable / 2);
  tree.append(*id, Tokens(served.tokens).subspan(prompt.size()));

  std::vector<Published> states = served.published;
  if (match.branch_tokens) {
    states.push_back({*match.branch_tokens, CheckpointKind::kBranch, TurnHint::kUnknown});
  }
  std::ranges::stable_sort(states, {}, &Published::boundary);
  for (const Published& state : states) {
    if (state.boundary <= match.usable_tokens) continue;
    const bool is_last = state.boundary == states.back().boundary;
    const std::optional<SlotId> slot =
        is_last ? tree.lease_of(*id).working_slots.front() : tree.take_checkpoint_slot(*id);
    if (slot) tree.publish(*id, state.boundary, slot, state.kind, state.hint);
    if (is_last) break;
  }
  tree.release(*id);
  tree.drain_moves();
}

void PolicyTrials::compare() {
  const auto best = std::ranges::find(trials_, best_, &Trial::policy);
  for (const Trial& trial : trials_) {
    if (trial.saved > best->saved * kLead) best_ = trial.policy;
  }
}

void PolicyTrials::flush() {
  for (Trial& trial : trials_) trial.tree->flush();
}

}  // namespace tasuki::cache
