// What allocations keep from eviction.
#pragma once

#include <cstdint>

#include "nodes/node_pool.h"
#include "tree/eviction_candidates.h"

namespace tasuki::cache {

// Changes who stands in the tree's nodes and who holds their states; owns the counts of what is so
// protected. An allocation stands in one node; that protects the KV of every ancestor. Does not
// know what an allocation holds beyond that.
//
// Cost: the nodes up to the first ancestor that is protected already.
class Pins {
 public:
  Pins(NodePool& nodes, EvictionCandidates& candidates) : nodes_(nodes), candidates_(candidates) {}

  void pin(NodeId id, AllocationId allocation, Tick now);
  // REQUIRES: the allocation stands there.
  void unpin(NodeId id, AllocationId allocation);
  void pin_state(const StateKey& state);
  void unpin_state(const StateKey& state);
  // The node's edge got so many pages more.
  void grew(const Node& node, std::int64_t pages) {
    if (node.is_protected()) protected_pages_ += pages;
  }

  // Of the tree, a tail's included.
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
