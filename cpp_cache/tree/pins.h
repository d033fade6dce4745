// Protection of tree items by allocations.
#pragma once

#include <cstdint>

#include "nodes/node_pool.h"
#include "tree/eviction_candidates.h"

namespace tasuki::cache {

// Changes the allocations and pins of the tree's nodes; owns the counts of protected items. An
// allocation is listed in one node and protects the KV of every ancestor. Does not know the rest of
// an allocation.
//
// Cost: the nodes up to the first protected ancestor.
class Pins {
 public:
  Pins(NodePool& nodes, EvictionCandidates& candidates) : nodes_(nodes), candidates_(candidates) {}

  void pin(NodeId id, AllocationId allocation, Tick now);
  // REQUIRES: the allocation is listed in the node.
  void unpin(NodeId id, AllocationId allocation);
  void pin_state(const StateKey& state);
  void unpin_state(const StateKey& state);
  // The node's edge grew by `pages` pages.
  void grew(const Node& node, std::int64_t pages) {
    if (node.is_protected()) protected_pages_ += pages;
  }

  // Return the number of protected pages, tails included.
  std::int64_t pages() const { return protected_pages_ + pinned_tail_pages_; }
  std::int64_t states() const { return pinned_states_; }

 private:
  void protect(Node& node);
  void unprotect(Node& node);

  NodePool& nodes_;
  EvictionCandidates& candidates_;
  std::int64_t pinned_states_ = 0;
  std::int64_t protected_pages_ = 0;
  std::int64_t pinned_tail_pages_ = 0;
};

}  // namespace tasuki::cache
