// A tree in a limited number of nodes, for display. Plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/ids.h"
#include "core/match.h"
#include "view/tree_census.h"

namespace tasuki::cache {

// Names a node while it lives; ids alone are reused.
struct NodeName {
  NodeId node;
  std::uint64_t serial;
};

// One node of a view. Durations are in ticks of the tree's clock: its mutating calls.
struct ViewedNode {
  std::optional<NodeName> name;       // nullopt: all namespaces together
  std::optional<std::int32_t> above;  // place of its parent in the view; nullopt: the first node
  std::int64_t depth = 0;             // tokens from the root to its end
  std::int64_t tokens = 0;            // tokens of its own run
  std::int64_t children = 0;          // resident children
  std::optional<CheckpointKind> state;
  std::int64_t tails = 0;        // states inside the next page
  std::int64_t allocations = 0;  // allocations at this node
  std::int64_t state_pins = 0;   // allocations that fork from its states
  bool is_protected = false;     // an allocation is here or below
  Tick unused = 0;               // ticks since its pages were last used
  Standing standing;             // sums over it and all nodes below
  Standing hidden;               // sums over the nodes below that are not in the view
};

// Parents come before their children.
using TreeView = std::vector<ViewedNode>;

// Return the `limit` heaviest subtrees, in tokens, at and below `under`. They are closed upwards,
// so the left-out part of each is one number. nullopt: the node is gone. REQUIRES: limit >= 1;
// census is taken. Cost: the children and tails of those nodes.
std::optional<TreeView> view_tree(const RadixTree& tree, const TreeCensus& census,
                                  std::optional<NodeName> under, std::int64_t limit, Tick now);

}  // namespace tasuki::cache
