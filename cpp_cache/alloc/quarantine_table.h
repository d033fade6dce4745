// Table of ids with a possible remote writer.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "alloc/slab_allocator.h"
#include "core/ids.h"

namespace tasuki::cache {

// Owns quarantined ids until their writer is fenced. Does not know allocations or writers. Thread
// rule: single-threaded, as PrefixCache.
class QuarantineTable {
 public:
  struct Quarantine {
    std::vector<PageId> pages;
    std::vector<SlotId> slots;
  };

  explicit QuarantineTable(SlabAllocator& allocator) : allocator_(allocator) {}

  // REQUIRES: all of them are granted.
  QuarantineId add(Quarantine granted);
  // Throws InvalidArgument if the quarantine was freed or never began.
  void free(QuarantineId id);
  const std::map<QuarantineId, Quarantine>& all() const { return quarantines_; }

 private:
  SlabAllocator& allocator_;
  std::map<QuarantineId, Quarantine> quarantines_;
  std::int64_t next_ = 1;
};

}  // namespace tasuki::cache
