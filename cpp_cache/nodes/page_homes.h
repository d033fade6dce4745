// Map from pages of the tree to their nodes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/cache_config.h"
#include "core/ids.h"
#include "nodes/node.h"

namespace tasuki::cache {

// Owns a map of page ids to their nodes, with the page in the run or in a tail. Entries of other
// pages are stale and never read.
class PageHomes {
 public:
  explicit PageHomes(const CacheConfig& shape);

  NodeId of(PageId page) const { return homes_[dense(page)]; }
  void put(PageId page, NodeId home) { homes_[dense(page)] = home; }
  // All pages of the node's edge.
  void put(const Node& home);

 private:
  std::size_t dense(PageId page) const;

  std::int64_t blocks_per_slab_;
  std::int64_t pages_per_slab_;
  std::vector<NodeId> homes_;  // slab * pages_per_slab + k
};

}  // namespace tasuki::cache
