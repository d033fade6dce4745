// One byte budget for pages and slots.
#pragma once

#include <cstdint>
#include <vector>

#include "alloc/id_set.h"
#include "alloc/pool_counts.h"
#include "core/cache_config.h"
#include "core/ids.h"

namespace tasuki::cache {

enum class Owner : std::uint8_t { kFree, kWorking, kTree, kGranted, kQuarantined };

// Owns the owner of each page and slot id. Does not know tokens, allocations or reasons.
//
// A slab (a group of page ids) is free, holds one slot, or holds up to pages_per_slab pages. It
// changes kind when its last id comes back. Thread rule: single-threaded, as PrefixCache.
//
// Invariants: a page or slot has exactly one owner. A page slab has at least one page in use. The
// smallest free id is handed out first, so equal calls give equal ids.
class SlabAllocator {
 public:
  // REQUIRES: config.validate() passed.
  explicit SlabAllocator(const CacheConfig& config);

  // Return true if so many pages and slots can be taken together now.
  bool fits(std::int64_t pages, std::int64_t slots) const;

  // Whole free slabs first, then gaps in part-used slabs, then one more slab.
  // REQUIRES: fits(count, 0). ENSURES: owner of each is kWorking.
  std::vector<PageId> take_pages(std::int64_t count);
  // Append the pages to `pages`; otherwise as above.
  void take_pages(std::int64_t count, std::vector<PageId>& pages);

  // REQUIRES: fits(0, 1). ENSURES: its owner is kWorking.
  SlotId take_slot();

  // Take exactly this id. Returns false, and takes nothing, if it is not free or not of this arena.
  // ENSURES: otherwise its owner is kWorking.
  bool claim(PageId page);
  bool claim(SlotId slot);

  // Return part-used page slabs, fewest pages first, if their free pages could hold the pages of
  // one of them; otherwise none.
  std::vector<std::int64_t> slabs_to_empty() const;
  // Return the slab's pages in use.
  std::vector<PageId> pages_in(std::int64_t slab) const;
  // A free page of another part-used slab. ENSURES: its owner is kWorking.
  PageId take_page_outside(std::int64_t slab);

  // Throws IntegrityError if the id's owner is not `from`. REQUIRES: neither is kFree.
  void hand_over(PageId page, Owner from, Owner to);
  void hand_over(SlotId slot, Owner from, Owner to);

  void give_back(PageId page, Owner from);
  void give_back(SlotId slot, Owner from);

  Owner owner(PageId page) const { return page_owner_[dense(page)]; }
  Owner owner(SlotId slot) const { return slot_owner_[static_cast<std::size_t>(raw(slot))]; }
  std::int64_t slab_of(PageId page) const {
    // 32 bits divide twice as fast.
    return static_cast<std::uint32_t>(raw(page)) /
           static_cast<std::uint32_t>(config_.blocks_per_slab);
  }

  // Return page and slot counts without `pinned`, a count of the tree.
  PoolCounts page_counts() const;
  PoolCounts slot_counts() const;
  std::int64_t slabs_free() const { return static_cast<std::int64_t>(free_slabs_.size()); }
  std::int64_t slabs_of_pages() const { return slabs_of_pages_; }
  std::int64_t slabs_of_slots() const { return config_.slabs - slabs_free() - slabs_of_pages_; }

  // Return page slabs with only free pages and pages of the tree.
  std::vector<std::int64_t> slabs_without_foreign_pages() const;

  // Throws IntegrityError (invariant 1) if counters and ids disagree.
  void check() const;

 private:
  std::size_t dense(PageId page) const;
  PageId page_id(std::int64_t slab, std::int64_t index) const;
  void take_from_slab(std::int64_t slab, std::int64_t count, std::vector<PageId>& out);

  CacheConfig config_;
  std::vector<Owner> page_owner_;         // slab * pages_per_slab + k
  std::vector<Owner> slot_owner_;         // by slab
  std::vector<std::int64_t> page_count_;  // pages of a slab in use
  IdSet free_slabs_;
  IdSet part_slabs_;  // page slabs with a free page
  std::int64_t slabs_of_pages_ = 0;
  std::int64_t pages_by_owner_[5] = {};  // page slabs only
  std::int64_t slots_by_owner_[5] = {};
};

}  // namespace tasuki::cache
