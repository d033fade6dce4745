// Sums of the entries in every subtree.
#pragma once

#include <cstdint>
#include <vector>

#include "policy/eviction_item.h"
#include "tree/radix_tree.h"

namespace tasuki::cache {

// Resident parts of a subtree, its top included. Tokens are those of whole pages.
struct Standing {
  std::int64_t tokens = 0;
  std::int32_t nodes = 0;
  std::int32_t states = 0;

  Standing& operator+=(const Standing& other);
  Standing& operator-=(const Standing& other);
  bool operator==(const Standing&) const = default;
};

// Owns one Standing per node while there are questions, and costs nothing before. Forgets them
// after many changes without a question. Does not know pins, allocations or page ids. Thread rule:
// single-threaded, as PrefixCache.
//
// Invariant: while taken, of(node) is the sum over the resident nodes at and below it. A ghost and
// an unknown id have nothing. Cost of a change: the node's ancestors.
class TreeCensus {
 public:
  explicit TreeCensus(const RadixTree& tree) : tree_(tree) {}

  // Counts the whole tree unless it is counted.
  void take();
  bool taken() const { return !standing_.empty(); }
  // REQUIRES: taken().
  const Standing& of(NodeId node) const { return standing_[static_cast<std::size_t>(raw(node))]; }

  // Called after the tree changed. The pages of `node` from `start` on, in tokens, got KV.
  void stored(NodeId node, std::int64_t start) {
    if (taken()) add_stored(node, start);
  }
  void split(NodeId upper) {
    if (taken()) add_split(upper);
  }
  void state_stored(NodeId node) {
    if (taken()) add_state(node);
  }
  // Called before.
  void evicting(const EvictionItem& item) {
    if (taken()) subtract_evicted(item);
  }

 private:
  Standing& at(NodeId node);
  static Standing alone(const Node& node);
  void add_stored(NodeId node, std::int64_t start);
  void add_split(NodeId upper);
  void add_state(NodeId node);
  void subtract_evicted(const EvictionItem& item);
  // To the node and all its ancestors.
  void add(NodeId node, const Standing& change);
  void subtract(NodeId node, const Standing& change);
  template <typename Change>
  void climb(NodeId node, Change change);

  const RadixTree& tree_;
  std::vector<Standing> standing_;  // by node; empty without questions
  std::int64_t changes_ = 0;        // changes since the last question
};

}  // namespace tasuki::cache
