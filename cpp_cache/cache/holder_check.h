// Checks of the invariants between tree, allocator and holders, recomputed from the ids up.
#pragma once

#include "alloc/quarantine_table.h"
#include "alloc/slab_allocator.h"
#include "requests/allocation_table.h"
#include "tree/radix_tree.h"

namespace tasuki::cache {

// Throws IntegrityError with the invariant's number (cache/prefix_cache.h). Cost: all held ids.
void check_holders(const SlabAllocator& allocator, const RadixTree& tree,
                   const AllocationTable& allocations, const QuarantineTable& quarantines);

}  // namespace tasuki::cache
