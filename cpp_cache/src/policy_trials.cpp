#include "cpp_cache/policy_trials.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "cpp_cache/hybrid_tree.h"
#include "cpp_cache/policies.h"
#include "cpp_cache/value_policy.h"

namespace tasuki::cache {

namespace {

constexpr double kFade = 0.999;  // a request: the last thousand decide
constexpr double kLead = 1.02;
constexpr double kSigmas = 3;  // by chance alone a lead this wide is rare
constexpr std::int64_t kRequestsToCompare = 64;

// One request of so many is tried: few enough to cost little, and trees still many prompts large.
std::int64_t share_of(const TreeConfig& config) {
  constexpr std::int64_t kLargest = 8;
  constexpr std::int64_t kFewestSlabs = 64;
  return std::clamp<std::int64_t>(config.slabs / kFewestSlabs, 1, kLargest);
}

}  // namespace

PolicyTrials::PolicyTrials(const TreeConfig& config, const ReuseModel& learnt)
    : attention_cost_(config.attention_cost), sample_(share_of(config)) {
  for (const PolicyKind policy : {PolicyKind::kValue, PolicyKind::kLru}) {
    TreeConfig shadow = config;
    shadow.policy = policy;
    shadow.slabs = config.slabs / share_of(config);
    shadow.max_ghost_nodes = config.max_ghost_nodes / share_of(config);
    auto chooser = policy == PolicyKind::kLru
                       ? make_policy(policy)
                       : std::unique_ptr<EvictionPolicy>(std::make_unique<ValuePolicy>(learnt));
    trials_.push_back({policy, std::make_unique<HybridTree>(shadow, std::move(chooser))});
  }
}

PolicyTrials::~PolicyTrials() = default;

void PolicyTrials::serve(const Served& served) {
  for (Trial& trial : trials_) {
    const double gain = serve(trial, served);
    trial.saved = trial.saved * kFade + gain;
    trial.latest = gain;
  }
  const Trial& followed = *std::ranges::find(trials_, best_, &Trial::policy);
  for (Trial& trial : trials_) {
    const double lead = trial.latest - followed.latest;
    trial.lead = trial.lead * kFade + lead;
    trial.spread = trial.spread * kFade + lead * lead;
  }
  if (++served_ % kRequestsToCompare == 0) compare();
}

double PolicyTrials::serve(Trial& trial, const Served& served) {
  HybridTree& tree = *trial.tree;
  tree.advance_to(served.now_ms);
  const auto prompt = Tokens(served.tokens).first(static_cast<std::size_t>(served.prompt_tokens));
  const LeaseTerms terms{static_cast<std::int64_t>(served.tokens.size()), 1, std::nullopt};
  // A prompt that only the real arena can hold.
  if (terms.capacity_tokens > tree.capacity_tokens(1)) return 0;
  const auto id = tree.lease(prompt, served.salt, terms);
  if (!id) return 0;
  const Match match = tree.lease_of(*id).match;
  const auto usable = static_cast<double>(match.usable_tokens);
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
  return usable * (1 + attention_cost_ * usable / 2);
}

void PolicyTrials::compare() {
  const Trial& followed = *std::ranges::find(trials_, best_, &Trial::policy);
  for (const Trial& trial : trials_) {
    const bool leads = trial.lead > (kLead - 1) * followed.saved;
    const bool is_luck = trial.lead < kSigmas * std::sqrt(trial.spread);
    if (!leads || is_luck) continue;
    best_ = trial.policy;
    for (Trial& each : trials_) each.lead = each.spread = 0;
    return;
  }
}

std::vector<PolicyScore> PolicyTrials::scores() const {
  std::vector<PolicyScore> out;
  for (const Trial& trial : trials_) out.push_back({trial.policy, trial.saved});
  return out;
}

void PolicyTrials::flush() {
  for (Trial& trial : trials_) trial.tree->flush();
}

}  // namespace tasuki::cache
