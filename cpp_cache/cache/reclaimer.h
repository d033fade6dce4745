// Room for those who need it: evictions, and pages that move so that a slab empties.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "alloc/slab_allocator.h"
#include "cache/tree_observers.h"
#include "core/cache_config.h"
#include "core/ids.h"
#include "events/eviction_log.h"
#include "tiers/tiers.h"
#include "tree/radix_tree.h"

namespace tasuki::cache {

// The KV of `from` now belongs at `to`.
struct PageMove {
  PageId from;
  PageId to;
};

// Owns the log of evictions and the moves that nobody followed yet. Takes from the tree what the
// policy chooses, and never what is pinned. Does not know prompts, nor who holds what is not the
// tree's.
class Reclaimer {
 public:
  Reclaimer(const CacheConfig& config, SlabAllocator& allocator, RadixTree& tree, Tiers* tiers,
            TreeObservers& observers)
      : config_(config), allocator_(allocator), tree_(tree), tiers_(tiers), observers_(observers) {}

  // Evicts for the allocation until so much fits; false, with nothing evicted, where it cannot.
  bool make_room(std::int64_t pages, std::int64_t slots, AllocationId allocation, Tick now);
  // All that is unpinned.
  void evict_all(Tick now);
  // A state that another one has replaced, where nobody pins it. That is no eviction: nothing was
  // short. REQUIRES: its node is alive.
  void drop(const StateKey& state, Tick now);

  // Moves decided since the last call, in order.
  std::vector<PageMove> drain_moves();
  std::vector<Eviction> drain_evictions() { return log_.drain(); }
  const EvictionLog& log() const { return log_; }
  // Over the cache's life.
  std::int64_t evicted_pages() const { return evicted_pages_; }
  std::int64_t evicted_checkpoints() const { return evicted_checkpoints_; }

 private:
  // Whether evicting all that is unpinned would make room.
  bool reclaimable(std::int64_t pages, std::int64_t slots) const;
  // Whether all of its pages are the tree's and nobody needs them.
  bool is_emptiable(std::int64_t slab) const;
  std::int64_t emptiable_slabs() const;
  void evict(const EvictionItem& item, std::optional<AllocationId> allocation, Tick now);
  // Gives back what the tree gives up. Returns what that was.
  Freed take_out(const EvictionItem& item, Tick now);
  // For the log; before it is evicted.
  Eviction described(const EvictionItem& item, std::optional<AllocationId> allocation) const;
  // Moves the pages of one slab into gaps of others; false where no slab can be emptied so.
  bool empty_a_slab();

  const CacheConfig& config_;
  SlabAllocator& allocator_;
  RadixTree& tree_;
  Tiers* tiers_;  // below the arena, if any
  TreeObservers& observers_;
  EvictionLog log_;
  std::vector<PageMove> moves_;
  std::int64_t evicted_pages_ = 0;
  std::int64_t evicted_checkpoints_ = 0;
};

}  // namespace tasuki::cache
