// The invariants of the tiers below the arena, recomputed from the copies and transfers up.
#pragma once

#include "tiers/tiers.h"

namespace tasuki::cache {

// Throws IntegrityError naming the invariant (numbers of cache/prefix_cache.h). Cost: all copies.
void check_tiers(const Tiers& tiers);

}  // namespace tasuki::cache
