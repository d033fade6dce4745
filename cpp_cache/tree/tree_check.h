// The invariants of the tree alone, recomputed from its nodes.
#pragma once

#include "core/ids.h"
#include "tree/radix_tree.h"

namespace tasuki::cache {

// Throws IntegrityError naming the invariant (numbers of cache/prefix_cache.h). Cost: all nodes.
void check_tree(const RadixTree& tree, Tick now);

}  // namespace tasuki::cache
