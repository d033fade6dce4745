// Snapshots of what is held by whom. Plain values.
#pragma once

#include <cstdint>
#include <vector>

#include "cpp_cache/match.h"
#include "cpp_cache/tree_config.h"

namespace tasuki::cache {

// free + working + tree + granted + quarantined == total. A free slab counts as free in both pools,
// since it can become either: total is what the pool could hold while the other keeps what it has.
struct PoolCounts {
  std::int64_t free = 0;
  std::int64_t working = 0;
  std::int64_t tree = 0;
  std::int64_t granted = 0;
  std::int64_t quarantined = 0;
  std::int64_t total = 0;
  std::int64_t pinned = 0;  // tree items under a lease
};

// What a shadow tree of a policy would have saved of late: prefill of one token is 1.
struct PolicyScore {
  PolicyKind policy;
  double saved;
};

struct TreeStats {
  PoolCounts pages;
  PoolCounts slots;
  std::int64_t slabs_free = 0;
  std::int64_t slabs_of_pages = 0;
  std::int64_t slabs_of_slots = 0;
  std::int64_t slabs_total = 0;
  std::int64_t nodes = 0;
  std::int64_t ghost_nodes = 0;
  std::int64_t checkpoints = 0;
  std::int64_t leases = 0;
  std::int64_t cursors = 0;
  // Counters over the tree's life.
  std::int64_t evicted_pages = 0;
  std::int64_t evicted_checkpoints = 0;
  std::int64_t leased_requests = 0;
  std::int64_t prompt_tokens = 0;
  std::int64_t usable_tokens = 0;
  Causes lost;
  std::vector<PolicyScore> policies;  // of kAuto: its candidates
};

}  // namespace tasuki::cache
