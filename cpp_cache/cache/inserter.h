// Insertion of an allocation's results into the tree.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "alloc/slab_allocator.h"
#include "cache/tree_observers.h"
#include "core/ids.h"
#include "placement/interior_placement.h"
#include "requests/allocation_table.h"
#include "requests/reuse_reports.h"
#include "tree/radix_tree.h"

namespace tasuki::cache {

// Owns nothing. Each inserted id changes its owner too.
class Inserter {
 public:
  Inserter(SlabAllocator& allocator, RadixTree& tree, Tiers* tiers, TreeObservers& observers,
           AllocationTable& allocations, InteriorPlacement& interior, ReuseReports& reports)
      : allocator_(allocator),
        tree_(tree),
        tiers_(tiers),
        observers_(observers),
        allocations_(allocations),
        interior_(interior),
        reports_(reports) {}

  // Ensure the tree holds [0, end) of the allocation's tokens. Returns the node whose edge holds
  // `end`. REQUIRES: end is whole pages, at or beyond the allocation's position.
  NodeId insert_path(Allocation& allocation, std::int64_t end, Tick now);
  // Insert the state at its boundary, with a tail if the boundary is inside a page. The slot
  // becomes the tree's, or free if the same state exists. Returns the node ending at the last whole
  // page. REQUIRES: the node's edge holds this end; the slot is the allocation's.
  NodeId insert_state(Allocation& allocation, NodeId node, SlotId slot, const InsertedState& state,
                      Tick now);
  // Insert a state inside a page still to be written by the allocation: its tail gets a page of its
  // own. Otherwise as insert_state(). Returns the node, and the taken page, still without KV.
  // REQUIRES: a page is free.
  std::pair<NodeId, std::optional<PageId>> insert_midway(Allocation& allocation, NodeId node,
                                                         SlotId slot, const InsertedState& state,
                                                         Tick now);

 private:
  void stored(const StateKey& state);
  // Returns the new upper part.
  NodeId split(NodeId id, std::int64_t depth, Tick now);
  std::vector<PageId> give_pages(Allocation& allocation, std::int64_t from, std::int64_t to);
  StateKey insert_checkpoint(Allocation& allocation, const Node& host, SlotId slot,
                             const Birth& birth, Tick now);
  StateKey insert_tail(Allocation& allocation, const Node& host, SlotId slot, const Birth& birth,
                       Tick now);
  // Return an equal existing tail to use instead of the new one; the slot is then free.
  std::optional<StateKey> standing_tail(const Node& host, Tokens tokens, SlotId slot, Tick now);
  // Give the allocation's page and the slot to a new tail.
  StateKey attach_tail(const Node& host, Tokens tokens, PageId page, SlotId slot,
                       const Birth& birth, Tick now);
  // Return the node ending at the last whole page before the state. REQUIRES: as insert_state().
  NodeId host_of(NodeId node, std::int64_t boundary, Tick now);
  void report(Allocation& allocation, const StateKey& key, const InsertedState& state);

  SlabAllocator& allocator_;
  RadixTree& tree_;
  Tiers* tiers_;  // below the arena, if any
  TreeObservers& observers_;
  AllocationTable& allocations_;
  InteriorPlacement& interior_;
  ReuseReports& reports_;
};

}  // namespace tasuki::cache
