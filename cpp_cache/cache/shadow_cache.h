// A cache that holds no memory, for trying a policy.
#pragma once

#include <memory>
#include <utility>

#include "cache/prefix_cache.h"
#include "trials/policy_trials.h"

namespace tasuki::cache {

// Owns a cache of its own, in which each request is served as the real one was: with the states
// that it inserted, and those where KV alone stands here.
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
