#include "requests/allocation.h"

#include <algorithm>
#include <string>

#include "core/errors.h"

namespace tasuki::cache {

Tokens Allocation::run(std::int64_t from, std::int64_t to) const {
  if (from < first_kept || to < from || to > tokens()) {
    throw IntegrityError("allocation " + std::to_string(raw(id)) +
                         " does not keep the tokens from " + std::to_string(from) + " to " +
                         std::to_string(to));
  }
  return Tokens(kept).subspan(static_cast<std::size_t>(from - first_kept),
                              static_cast<std::size_t>(to - from));
}

PageId Allocation::give_page(std::size_t logical) {
  own[logical] = false;
  return pages[logical];
}

void Allocation::count_shared_pages() {
  const auto count = static_cast<std::int64_t>(pages.size());
  while (shared_pages < count && !own[static_cast<std::size_t>(shared_pages)]) ++shared_pages;
}

bool Allocation::holds_slot(SlotId slot) const {
  const auto among = [slot](const std::vector<SlotId>& slots) {
    return std::ranges::find(slots, slot) != slots.end();
  };
  return among(working_slots) || among(destination_slots);
}

void Allocation::give_slot(SlotId slot) {
  std::erase(working_slots, slot);
  std::erase(destination_slots, slot);
}

}  // namespace tasuki::cache
