// Table of live allocations.
#pragma once

#include <cstdint>
#include <map>
#include <string_view>

#include "core/ids.h"
#include "requests/allocation.h"

namespace tasuki::cache {

// Owns the allocations, and never reuses an id. Errors name calls and objects as Python does: an
// allocation.
class AllocationTable {
 public:
  // The id of the next one to be added.
  AllocationId next_id() const { return static_cast<AllocationId>(next_); }
  // Add an empty allocation under next_id(), for the caller to fill.
  Allocation& add();
  void erase(AllocationId id) { allocations_.erase(id); }

  // Throws InvalidArgument after its release, as the two below.
  const Allocation& at(AllocationId id) const;
  Allocation& at(AllocationId id);
  // Throws InvalidArgument, beginning with the verb, unless it may still be written and inserted.
  Allocation& working(AllocationId id, std::string_view verb);
  // The same unless a remote sender may write it.
  Allocation& granted(AllocationId id, std::string_view verb);

  std::int64_t size() const { return static_cast<std::int64_t>(allocations_.size()); }
  const std::map<AllocationId, Allocation>& all() const { return allocations_; }

 private:
  std::map<AllocationId, Allocation> allocations_;
  std::int64_t next_ = 1;
};

}  // namespace tasuki::cache
