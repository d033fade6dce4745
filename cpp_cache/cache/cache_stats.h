// Snapshot of the held ids by owner. Plain values.
#pragma once

#include <cstdint>
#include <vector>

#include "alloc/pool_counts.h"
#include "core/match.h"
#include "tiers/tier_counts.h"
#include "trials/policy_trials.h"

namespace tasuki::cache {

struct CacheStats {
  PoolCounts pages;
  PoolCounts slots;
  std::int64_t slabs_free = 0;
  std::int64_t slabs_of_pages = 0;
  std::int64_t slabs_of_slots = 0;
  std::int64_t slabs_total = 0;
  std::int64_t nodes = 0;
  std::int64_t ghost_nodes = 0;
  std::int64_t checkpoints = 0;
  std::int64_t allocations = 0;
  std::int64_t cursors = 0;
  // Counters over the cache's life.
  std::int64_t evicted_pages = 0;
  std::int64_t evicted_checkpoints = 0;
  std::int64_t allocated_requests = 0;
  std::int64_t prompt_tokens = 0;
  std::int64_t usable_tokens = 0;
  MissReasons miss_reasons;
  std::vector<PolicyScore> policies;  // candidates of kAuto
  std::vector<TierCounts> tiers;      // below the arena, the nearest first
  std::int64_t waiting_writes = 0;
};

}  // namespace tasuki::cache
