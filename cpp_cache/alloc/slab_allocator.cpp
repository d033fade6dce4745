#include "alloc/slab_allocator.h"

#include <algorithm>
#include <string>

#include "core/errors.h"

namespace tasuki::cache {

namespace {

std::size_t index(Owner owner) { return static_cast<std::size_t>(owner); }

PoolCounts counts_of(const std::int64_t (&by_owner)[5], std::int64_t free) {
  PoolCounts counts;
  counts.free = free;
  counts.working = by_owner[index(Owner::kWorking)];
  counts.tree = by_owner[index(Owner::kTree)];
  counts.granted = by_owner[index(Owner::kGranted)];
  counts.quarantined = by_owner[index(Owner::kQuarantined)];
  counts.total = counts.free + counts.working + counts.tree + counts.granted + counts.quarantined;
  return counts;
}

[[noreturn]] void broken(const std::string& what) {
  throw IntegrityError("invariant 1 (every id has one owner): " + what);
}

}  // namespace

SlabAllocator::SlabAllocator(const CacheConfig& config)
    : config_(config),
      page_owner_(static_cast<std::size_t>(config.slabs * config.pages_per_slab), Owner::kFree),
      slot_owner_(static_cast<std::size_t>(config.slabs), Owner::kFree),
      page_count_(static_cast<std::size_t>(config.slabs), 0),
      free_slabs_(config.slabs),
      part_slabs_(config.slabs) {
  for (std::int64_t slab = 0; slab < config.slabs; ++slab) {
    free_slabs_.insert(slab);
  }
}

std::size_t SlabAllocator::dense(PageId page) const {
  const std::int64_t slab = slab_of(page);
  return static_cast<std::size_t>(slab * config_.pages_per_slab + raw(page) -
                                  slab * config_.blocks_per_slab);
}

PageId SlabAllocator::page_id(std::int64_t slab, std::int64_t index) const {
  return static_cast<PageId>(slab * config_.blocks_per_slab + index);
}

bool SlabAllocator::fits(std::int64_t pages, std::int64_t slots) const {
  if (slots > slabs_free()) return false;
  return pages <= page_counts().free - slots * config_.pages_per_slab;
}

std::vector<PageId> SlabAllocator::take_pages(std::int64_t count) {
  std::vector<PageId> pages;
  pages.reserve(static_cast<std::size_t>(count));
  take_pages(count, pages);
  return pages;
}

void SlabAllocator::take_pages(std::int64_t count, std::vector<PageId>& pages) {
  const auto stop = static_cast<std::int64_t>(pages.size()) + count;
  const auto left = [&] { return stop - static_cast<std::int64_t>(pages.size()); };
  while (left() >= config_.pages_per_slab && !free_slabs_.empty()) {
    take_from_slab(*free_slabs_.begin(), config_.pages_per_slab, pages);
  }
  while (left() > 0) {
    const std::int64_t slab = part_slabs_.empty() ? *free_slabs_.begin() : *part_slabs_.begin();
    take_from_slab(slab, left(), pages);
  }
}

void SlabAllocator::take_from_slab(std::int64_t slab, std::int64_t count,
                                   std::vector<PageId>& out) {
  std::int64_t& used = page_count_[static_cast<std::size_t>(slab)];
  if (used == 0) {
    free_slabs_.erase(slab);
    part_slabs_.insert(slab);
    ++slabs_of_pages_;
  }
  const std::int64_t before = used;
  Owner* const owners = &page_owner_[static_cast<std::size_t>(slab * config_.pages_per_slab)];
  for (std::int64_t k = 0; k < config_.pages_per_slab && used - before < count; ++k) {
    if (owners[k] != Owner::kFree) continue;
    owners[k] = Owner::kWorking;
    ++used;
    out.push_back(page_id(slab, k));
  }
  pages_by_owner_[index(Owner::kWorking)] += used - before;
  if (used == config_.pages_per_slab) part_slabs_.erase(slab);
}

SlotId SlabAllocator::take_slot() {
  const std::int64_t slab = *free_slabs_.begin();
  free_slabs_.erase(slab);
  slot_owner_[static_cast<std::size_t>(slab)] = Owner::kWorking;
  ++slots_by_owner_[index(Owner::kWorking)];
  return static_cast<SlotId>(slab);
}

bool SlabAllocator::claim(PageId page) {
  if (raw(page) < 0) return false;
  const std::int64_t slab = slab_of(page);
  if (slab >= config_.slabs || raw(page) % config_.blocks_per_slab >= config_.pages_per_slab) {
    return false;
  }
  const auto place = static_cast<std::size_t>(slab);
  if (slot_owner_[place] != Owner::kFree || owner(page) != Owner::kFree) return false;
  if (page_count_[place] == 0) {
    free_slabs_.erase(slab);
    part_slabs_.insert(slab);
    ++slabs_of_pages_;
  }
  page_owner_[dense(page)] = Owner::kWorking;
  ++pages_by_owner_[index(Owner::kWorking)];
  if (++page_count_[place] == config_.pages_per_slab) part_slabs_.erase(slab);
  return true;
}

bool SlabAllocator::claim(SlotId slot) {
  if (raw(slot) < 0 || raw(slot) >= config_.slabs || !free_slabs_.contains(raw(slot))) return false;
  free_slabs_.erase(raw(slot));
  slot_owner_[static_cast<std::size_t>(raw(slot))] = Owner::kWorking;
  ++slots_by_owner_[index(Owner::kWorking)];
  return true;
}

std::vector<std::int64_t> SlabAllocator::slabs_to_empty() const {
  const std::int64_t gaps = page_counts().free - slabs_free() * config_.pages_per_slab;
  if (gaps < config_.pages_per_slab) return {};
  std::vector<std::int64_t> slabs(part_slabs_.begin(), part_slabs_.end());
  std::ranges::stable_sort(
      slabs, {}, [this](std::int64_t slab) { return page_count_[static_cast<std::size_t>(slab)]; });
  return slabs;
}

std::vector<PageId> SlabAllocator::pages_in(std::int64_t slab) const {
  std::vector<PageId> pages;
  for (std::int64_t k = 0; k < config_.pages_per_slab; ++k) {
    if (owner(page_id(slab, k)) != Owner::kFree) pages.push_back(page_id(slab, k));
  }
  return pages;
}

PageId SlabAllocator::take_page_outside(std::int64_t slab) {
  auto other = part_slabs_.begin();
  if (*other == slab) ++other;
  std::vector<PageId> taken;
  take_from_slab(*other, 1, taken);
  return taken.front();
}

void SlabAllocator::hand_over(PageId page, Owner from, Owner to) {
  Owner& owner = page_owner_[dense(page)];
  if (owner != from) broken("page " + std::to_string(raw(page)) + " has another owner");
  owner = to;
  --pages_by_owner_[index(from)];
  ++pages_by_owner_[index(to)];
}

void SlabAllocator::hand_over(SlotId slot, Owner from, Owner to) {
  Owner& owner = slot_owner_[static_cast<std::size_t>(raw(slot))];
  if (owner != from) broken("slot " + std::to_string(raw(slot)) + " has another owner");
  owner = to;
  --slots_by_owner_[index(from)];
  ++slots_by_owner_[index(to)];
}

void SlabAllocator::give_back(PageId page, Owner from) {
  hand_over(page, from, Owner::kFree);
  --pages_by_owner_[index(Owner::kFree)];
  const std::int64_t slab = slab_of(page);
  if (--page_count_[static_cast<std::size_t>(slab)] > 0) {
    part_slabs_.insert(slab);
    return;
  }
  part_slabs_.erase(slab);
  free_slabs_.insert(slab);
  --slabs_of_pages_;
}

void SlabAllocator::give_back(SlotId slot, Owner from) {
  hand_over(slot, from, Owner::kFree);
  --slots_by_owner_[index(Owner::kFree)];
  free_slabs_.insert(raw(slot));
}

PoolCounts SlabAllocator::page_counts() const {
  std::int64_t used = 0;
  for (const std::int64_t count : pages_by_owner_) used += count;
  return counts_of(pages_by_owner_,
                   (slabs_of_pages_ + slabs_free()) * config_.pages_per_slab - used);
}

PoolCounts SlabAllocator::slot_counts() const { return counts_of(slots_by_owner_, slabs_free()); }

std::vector<std::int64_t> SlabAllocator::slabs_without_foreign_pages() const {
  std::vector<std::int64_t> out;
  for (std::int64_t slab = 0; slab < config_.slabs; ++slab) {
    if (page_count_[static_cast<std::size_t>(slab)] == 0) continue;
    const auto first = page_owner_.begin() + slab * config_.pages_per_slab;
    if (std::all_of(first, first + config_.pages_per_slab,
                    [](Owner owner) { return owner == Owner::kFree || owner == Owner::kTree; })) {
      out.push_back(slab);
    }
  }
  return out;
}

void SlabAllocator::check() const {
  std::int64_t pages[5] = {};
  std::int64_t slots[5] = {};
  std::int64_t page_slabs = 0;
  for (std::int64_t slab = 0; slab < config_.slabs; ++slab) {
    std::int64_t used = 0;
    for (std::int64_t k = 0; k < config_.pages_per_slab; ++k) {
      const Owner page_owner = owner(page_id(slab, k));
      if (page_owner == Owner::kFree) continue;
      ++used;
      ++pages[index(page_owner)];
    }
    const Owner slot_owner = slot_owner_[static_cast<std::size_t>(slab)];
    const bool holds_slot = slot_owner != Owner::kFree;
    const std::string name = "slab " + std::to_string(slab);
    if (holds_slot) ++slots[index(slot_owner)];
    if (used > 0) ++page_slabs;
    if (holds_slot && used > 0) broken(name + " holds a slot and pages");
    if (used != page_count_[static_cast<std::size_t>(slab)]) broken(name + " miscounts its pages");
    if (free_slabs_.contains(slab) != (used == 0 && !holds_slot)) {
      broken(name + " is on the wrong side of the free list");
    }
    if (part_slabs_.contains(slab) != (used > 0 && used < config_.pages_per_slab)) {
      broken(name + " is on the wrong side of the list of part-used slabs");
    }
  }
  if (!std::equal(std::begin(pages), std::end(pages), std::begin(pages_by_owner_)) ||
      !std::equal(std::begin(slots), std::end(slots), std::begin(slots_by_owner_))) {
    broken("the counts by owner disagree with the ids");
  }
  if (page_slabs != slabs_of_pages_) broken("the count of page slabs disagrees with the slabs");
}

}  // namespace tasuki::cache
