// Counts of a tier's contents and transfers. Plain values.
#pragma once

#include <cstdint>
#include <optional>

#include "alloc/pool_counts.h"

namespace tasuki::cache {

struct TierCounts {
  PoolCounts pages;  // a reserved copy's ids are working
  PoolCounts slots;
  std::int64_t slabs_free = 0;
  std::int64_t slabs_total = 0;
  // Over the cache's life. Written and loaded: as acknowledged.
  std::int64_t written_pages = 0;
  std::int64_t written_slots = 0;
  std::int64_t loaded_pages = 0;
  std::int64_t loaded_slots = 0;
  std::int64_t dropped_pages = 0;
  std::int64_t dropped_slots = 0;
  std::int64_t refused_writes = 0;    // never begun: no room, or not worth it
  std::int64_t abandoned_writes = 0;  // their source was lost meanwhile
  std::int64_t failed_transfers = 0;
  // For a tier with a write budget: pages to be written now; below 0 after too large a transfer.
  std::optional<double> budget_pages{};
};

}  // namespace tasuki::cache
