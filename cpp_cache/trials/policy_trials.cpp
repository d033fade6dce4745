#include "trials/policy_trials.h"

#include <algorithm>
#include <cmath>

namespace tasuki::cache {

namespace {

constexpr double kFade = 0.999;  // a request: the last thousand decide
constexpr double kLead = 1.02;
constexpr double kSigmas = 3;  // by chance alone a lead this wide is rare
constexpr std::int64_t kRequestsToCompare = 64;

}  // namespace

PolicyTrials::PolicyTrials(std::int64_t one_in, std::vector<Candidate> candidates)
    : sample_(one_in) {
  for (auto& [policy, shadow] : candidates) trials_.push_back({policy, std::move(shadow)});
}

void PolicyTrials::serve(const Served& served) {
  for (Trial& trial : trials_) {
    const double gain = trial.shadow->serve(served);
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
  for (Trial& trial : trials_) trial.shadow->flush();
}

}  // namespace tasuki::cache
