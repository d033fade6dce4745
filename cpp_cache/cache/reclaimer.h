// Reclaiming of memory: evictions, and moves of pages to empty a slab.
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

// Owns the log of evictions and the pending moves. Evicts the policy's victims, never pinned ones.
// Does not know prompts, or holders outside of the tree.
class Reclaimer {
 public:
  Reclaimer(const CacheConfig& config, SlabAllocator& allocator, RadixTree& tree, Tiers* tiers,
            TreeObservers& observers)
      : config_(config), allocator_(allocator), tree_(tree), tiers_(tiers), observers_(observers) {}

  // Evict for the allocation until it fits. Returns false, with nothing evicted, if it cannot fit.
  bool make_room(std::int64_t pages, std::int64_t slots, AllocationId allocation, Tick now);
  // Evict all unpinned entries.
  void evict_all(Tick now);
  // Drop an unpinned state replaced by another one. This is no eviction, because no room was
  // needed. REQUIRES: its node is alive.
  void drop(const StateKey& state, Tick now);

  // Moves decided since the last call, in order.
  std::vector<PageMove> drain_moves();
  std::vector<Eviction> drain_evictions() { return log_.drain(); }
  const EvictionLog& log() const { return log_; }
  // Over the cache's life.
  std::int64_t evicted_pages() const { return evicted_pages_; }
  std::int64_t evicted_checkpoints() const { return evicted_checkpoints_; }

 private:
  // Return true if evicting all unpinned entries would make room.
  bool reclaimable(std::int64_t pages, std::int64_t slots) const;
  // Return true if all pages of the slab are the tree's and unpinned.
  bool is_emptiable(std::int64_t slab) const;
  std::int64_t emptiable_slabs() const;
  void evict(const EvictionItem& item, std::optional<AllocationId> allocation, Tick now);
  // Take the item out of the tree and return its ids to the allocator. Returns the freed ids.
  Freed take_out(const EvictionItem& item, Tick now);
  // Return the entry for the log. Call it before the eviction.
  Eviction described(const EvictionItem& item, std::optional<AllocationId> allocation) const;
  // Move the pages of one slab into gaps of others. Returns false if no slab can be emptied.
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
