// Invariants between the tree, the allocator and those who hold ids, recomputed from the ids up.
#pragma once

#include "alloc/quarantine_table.h"
#include "alloc/slab_allocator.h"
#include "requests/allocation_table.h"
#include "tree/radix_tree.h"

namespace tasuki::cache {

// Throws IntegrityError naming the invariant (numbers of cache/prefix_cache.h). Cost: all that is
// held.
void check_holders(const SlabAllocator& allocator, const RadixTree& tree,
                   const AllocationTable& allocations, const QuarantineTable& quarantines);

}  // namespace tasuki::cache
