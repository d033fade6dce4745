#include "nodes/page_homes.h"

namespace tasuki::cache {

PageHomes::PageHomes(const CacheConfig& shape)
    : blocks_per_slab_(shape.blocks_per_slab),
      pages_per_slab_(shape.pages_per_slab),
      homes_(static_cast<std::size_t>(shape.slabs * shape.pages_per_slab)) {}

void PageHomes::put(const Node& home) {
  for (const PageId page : home.pages) put(page, home.id);
}

std::size_t PageHomes::dense(PageId page) const {
  return static_cast<std::size_t>(raw(page) / blocks_per_slab_ * pages_per_slab_ +
                                  raw(page) % blocks_per_slab_);
}

}  // namespace tasuki::cache
