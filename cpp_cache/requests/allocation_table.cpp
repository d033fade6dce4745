#include "requests/allocation_table.h"

#include <string>
#include <utility>

#include "core/errors.h"

namespace tasuki::cache {

namespace {

std::string name(AllocationId id, std::string_view verb) {
  return std::string(verb) + ": allocation " + std::to_string(raw(id));
}

}  // namespace

Allocation& AllocationTable::add() {
  const AllocationId id = next_id();
  ++next_;
  Allocation& added = allocations_.try_emplace(allocations_.end(), id)->second;
  added.id = id;
  return added;
}

const Allocation& AllocationTable::at(AllocationId id) const {
  const auto found = allocations_.find(id);
  if (found == allocations_.end()) {
    throw InvalidArgument("allocation " + std::to_string(raw(id)) + " was released");
  }
  return found->second;
}

Allocation& AllocationTable::at(AllocationId id) {
  return const_cast<Allocation&>(std::as_const(*this).at(id));
}

Allocation& AllocationTable::working(AllocationId id, std::string_view verb) {
  Allocation& allocation = at(id);
  if (allocation.state == AllocationState::kGranted) {
    throw InvalidArgument(name(id, verb) +
                          " is granted to a sender: accept_received or quarantine it first");
  }
  if (allocation.state == AllocationState::kClosed) {
    throw InvalidArgument(name(id, verb) + " inserted a tail: only release may follow");
  }
  if (allocation.state == AllocationState::kVoid) {
    throw InvalidArgument(name(id, verb) +
                          " starts from a load that failed: release it and allocate again");
  }
  return allocation;
}

Allocation& AllocationTable::granted(AllocationId id, std::string_view verb) {
  Allocation& allocation = at(id);
  if (allocation.state == AllocationState::kGranted) return allocation;
  throw InvalidArgument(name(id, verb) + " is not granted");
}

}  // namespace tasuki::cache
