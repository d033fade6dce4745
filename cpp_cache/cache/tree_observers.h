// Who is shown every change of what stands in the tree.
#pragma once

#include <cstdint>

#include "events/event_journal.h"
#include "policy/eviction_item.h"
#include "tree/radix_tree.h"
#include "view/tree_census.h"

namespace tasuki::cache {

// Owns the journal of events and the census. Whoever changes the tree calls these; they cost
// nothing while nobody watches or looks.
class TreeObservers {
 public:
  explicit TreeObservers(const RadixTree& tree) : journal_(tree), census_(tree) {}

  EventJournal& journal() { return journal_; }
  TreeCensus& census() { return census_; }

  // Called after the tree changed. The pages of `node` from `start` on, in tokens, got KV.
  void stored(NodeId node, std::int64_t start) {
    journal_.stored(node, start);
    census_.stored(node, start);
  }
  void split(NodeId upper) {
    journal_.split(upper);
    census_.split(upper);
  }
  void state_stored(const StateKey& state) {
    journal_.state_stored(state);
    census_.state_stored(state.node);
  }
  // Called before.
  void evicting(const EvictionItem& item) {
    journal_.evicting(item);
    census_.evicting(item);
  }

 private:
  EventJournal journal_;
  TreeCensus census_;
};

}  // namespace tasuki::cache
