// Counts of a pool's ids by owner. Plain values.
#pragma once

#include <cstdint>

namespace tasuki::cache {

// free + working + tree + granted + quarantined == total. A free slab counts as free in both pools,
// because it can become either. So total is the pool's size while the other pool keeps its ids.
struct PoolCounts {
  std::int64_t free = 0;
  std::int64_t working = 0;
  std::int64_t tree = 0;
  std::int64_t granted = 0;
  std::int64_t quarantined = 0;
  std::int64_t total = 0;
  std::int64_t pinned = 0;  // tree items under an allocation
};

}  // namespace tasuki::cache
