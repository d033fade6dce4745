#include "cache/reclaimer.h"

#include <algorithm>
#include <utility>

#include "core/errors.h"

namespace tasuki::cache {

bool Reclaimer::make_room(std::int64_t pages, std::int64_t slots, AllocationId allocation,
                          Tick now) {
  if (allocator_.fits(pages, slots)) return true;
  if (!reclaimable(pages, slots)) return false;
  while (!allocator_.fits(pages, slots)) {
    if (slots > allocator_.slabs_free() && empty_a_slab()) continue;
    const auto item = tree_.victim();
    if (!item) throw IntegrityError("invariant 3: room was counted that no eviction can make");
    evict(*item, allocation, now);
  }
  return true;
}

void Reclaimer::evict_all(Tick now) {
  while (const auto item = tree_.victim()) evict(*item, std::nullopt, now);
}

bool Reclaimer::reclaimable(std::int64_t pages, std::int64_t slots) const {
  const std::int64_t loose_slots = tree_.states() - tree_.pins().states();
  const std::int64_t loose_pages = tree_.pages() - tree_.pins().pages();
  const std::int64_t room =
      allocator_.page_counts().free + loose_pages + loose_slots * config_.pages_per_slab;
  if (pages > room - slots * config_.pages_per_slab) return false;
  const std::int64_t whole = allocator_.slabs_free() + loose_slots;
  // Counting emptiable slabs looks at all of them: do so only if free slabs and states do not
  // suffice.
  return slots <= whole || slots <= whole + emptiable_slabs();
}

bool Reclaimer::is_emptiable(std::int64_t slab) const {
  return std::ranges::all_of(allocator_.pages_in(slab), [this](PageId page) {
    return allocator_.owner(page) == Owner::kTree && tree_.movable(page);
  });
}

std::int64_t Reclaimer::emptiable_slabs() const {
  return std::ranges::count_if(allocator_.slabs_without_foreign_pages(),
                               [this](std::int64_t slab) { return is_emptiable(slab); });
}

Eviction Reclaimer::described(const EvictionItem& item,
                              std::optional<AllocationId> allocation) const {
  const Node& node = tree_.node(item.node);
  Eviction eviction{.sequence = 0,
                    .kind = item.kind,
                    .checkpoint_kind = {},
                    .boundary = node.depth,
                    .pages = static_cast<std::int64_t>(node.pages.size()),
                    .score = tree_.score(item),
                    .allocation = allocation};
  if (item.kind == EvictionKind::kLeafPages) return eviction;
  const Checkpoint& state = node.state(item.tail);
  eviction.checkpoint_kind = state.kind;
  eviction.boundary = state.boundary;
  eviction.pages = config_.pages_per_slab + (item.tail ? 1 : 0);
  return eviction;
}

void Reclaimer::evict(const EvictionItem& item, std::optional<AllocationId> allocation, Tick now) {
  log_.add(item, described(item, allocation));
  const Freed freed = take_out(item, now);
  evicted_pages_ += static_cast<std::int64_t>(freed.pages.size());
  evicted_checkpoints_ += freed.slot ? 1 : 0;
}

void Reclaimer::drop(const StateKey& state, Tick now) {
  if (const auto item = tree_.candidates().state_item(state)) take_out(*item, now);
}

Freed Reclaimer::take_out(const EvictionItem& item, Tick now) {
  if (tiers_ != nullptr) tiers_->leaving(item);
  observers_.evicting(item);
  Freed freed = tree_.evict(item, now);
  for (const PageId page : freed.pages) allocator_.give_back(page, Owner::kTree);
  if (freed.slot) allocator_.give_back(*freed.slot, Owner::kTree);
  return freed;
}

bool Reclaimer::empty_a_slab() {
  for (const std::int64_t slab : allocator_.slabs_to_empty()) {
    if (!is_emptiable(slab)) continue;
    for (const PageId from : allocator_.pages_in(slab)) {
      const PageId to = allocator_.take_page_outside(slab);
      if (tiers_ != nullptr) tiers_->moving(tree_.home_of(from));
      tree_.move_page(from, to);
      allocator_.hand_over(to, Owner::kWorking, Owner::kTree);
      allocator_.give_back(from, Owner::kTree);
      moves_.push_back({from, to});
    }
    return true;
  }
  return false;
}

std::vector<PageMove> Reclaimer::drain_moves() { return std::exchange(moves_, {}); }

}  // namespace tasuki::cache
