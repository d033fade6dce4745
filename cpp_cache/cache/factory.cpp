#include "cache/factory.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "cache/shadow_cache.h"
#include "policy/policies.h"
#include "policy/value_policy.h"

namespace tasuki::cache {

namespace {

// One request in this many is tried. The cost is then small, and trees are still many prompts
// large.
std::int64_t share_of(const CacheConfig& config) {
  constexpr std::int64_t kLargest = 8;
  constexpr std::int64_t kFewestSlabs = 64;
  std::int64_t slabs = config.slabs;
  for (const TierConfig& tier : config.tiers) slabs += tier.slabs;
  return std::clamp<std::int64_t>(slabs / kFewestSlabs, 1, kLargest);
}

// learnt: model of the whole traffic, because a sample would teach it slower. REQUIRES: it outlives
// the trials.
std::unique_ptr<PolicyTrials> make_trials(const CacheConfig& config, const ReuseModel& learnt) {
  const std::int64_t share = share_of(config);
  CacheConfig shape = config;
  // A tier keeps evicted states, so arena and tiers are tried as one.
  for (const TierConfig& tier : std::exchange(shape.tiers, {})) shape.slabs += tier.slabs;
  shape.slabs /= share;
  shape.max_ghost_nodes = config.max_ghost_nodes / share;
  std::vector<PolicyTrials::Candidate> candidates;
  const auto add = [&](PolicyKind kind, std::unique_ptr<EvictionPolicy> policy) {
    shape.policy = kind;
    candidates.emplace_back(kind, std::make_unique<ShadowCache>(shape, std::move(policy)));
  };
  add(PolicyKind::kValue, std::make_unique<ValuePolicy>(learnt));
  add(PolicyKind::kLru, make_policy(PolicyKind::kLru));
  return std::make_unique<PolicyTrials>(share, std::move(candidates));
}

}  // namespace

PrefixCache make_prefix_cache(const CacheConfig& config) {
  config.validate();
  auto policy = make_policy(config.policy);
  std::unique_ptr<PolicyTrials> trials;
  if (config.policy == PolicyKind::kAuto) trials = make_trials(config, *policy->model());
  return PrefixCache(config, std::move(policy), std::move(trials));
}

}  // namespace tasuki::cache
