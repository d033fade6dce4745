// The shape of the arena as the tree sees it: counts, never bytes.
#pragma once

#include <cstdint>

namespace tasuki::cache {

struct TreeConfig {
  std::int64_t slabs;
  std::int64_t blocks_per_slab;  // stride of page ids from slab to slab
  std::int64_t pages_per_slab;
  std::int64_t
      max_ghost_nodes;  // evicted nodes and tails remembered, to tell why a prefix was lost

  // Throws InvalidArgument naming the field that no arena can have.
  void validate() const;
};

}  // namespace tasuki::cache
