// Who holds how much of a pool. Plain values.
#pragma once

#include <cstdint>

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
  std::int64_t pinned = 0;  // tree items under an allocation
};

}  // namespace tasuki::cache
