#include "alloc/quarantine_table.h"

#include <string>
#include <utility>

#include "core/errors.h"

namespace tasuki::cache {

QuarantineId QuarantineTable::add(Quarantine granted) {
  for (const PageId page : granted.pages) {
    allocator_.hand_over(page, Owner::kGranted, Owner::kQuarantined);
  }
  for (const SlotId slot : granted.slots) {
    allocator_.hand_over(slot, Owner::kGranted, Owner::kQuarantined);
  }
  const auto id = static_cast<QuarantineId>(next_++);
  quarantines_.emplace(id, std::move(granted));
  return id;
}

void QuarantineTable::free(QuarantineId id) {
  const auto found = quarantines_.find(id);
  if (found == quarantines_.end()) {
    throw InvalidArgument("quarantine " + std::to_string(raw(id)) + " was freed or never began");
  }
  for (const PageId page : found->second.pages) {
    allocator_.give_back(page, Owner::kQuarantined);
  }
  for (const SlotId slot : found->second.slots) {
    allocator_.give_back(slot, Owner::kQuarantined);
  }
  quarantines_.erase(found);
}

}  // namespace tasuki::cache
