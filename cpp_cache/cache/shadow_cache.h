// A cache without memory, to try a policy.
#pragma once

#include <memory>
#include <utility>

#include "cache/prefix_cache.h"
#include "trials/policy_trials.h"

namespace tasuki::cache {

// Owns a cache of its own. It serves each request like the real cache: with the same inserted
// states, and states for KV without one here.
class ShadowCache final : public Shadow {
 public:
  ShadowCache(const CacheConfig& config, std::unique_ptr<EvictionPolicy> policy)
      : cache_(config, std::move(policy)) {}

  double serve(const Served& served) override;
  void flush() override { cache_.flush(); }

 private:
  PrefixCache cache_;
};

}  // namespace tasuki::cache
