// Observers of every change of the tree.
#pragma once

#include <cstdint>

#include "events/event_journal.h"
#include "policy/eviction_item.h"
#include "tree/radix_tree.h"
#include "view/tree_census.h"

namespace tasuki::cache {

// Owns the journal of events and the census. Callers report changes of the tree here. Costs nothing
// without a watcher or a view.
class TreeObservers {
 public:
  explicit TreeObservers(const RadixTree& tree) : tree_(tree), journal_(tree), census_(tree) {}

  EventJournal& journal() { return journal_; }
  TreeCensus& census() { return census_; }

  // Call this after pages of `node` from token `start` on got KV. For event watchers a prefix in a
  // tier was never removed.
  void stored(NodeId node, std::int64_t start) {
    if (tree_.node(node).kv_below == 0) journal_.stored(node, start);
    census_.stored(node, start);
  }
  void split(NodeId upper) {
    journal_.split(upper);
    census_.split(upper);
  }
  void state_stored(const StateKey& state) {
    if (tree_.state_below(state).tiers == 0) {
      journal_.state_stored(state);
    } else {
      journal_.state_moved(state, 0);
    }
    census_.state_stored(state.node);
  }
  // Called before.
  void evicting(const EvictionItem& item) {
    if (!stands_below(item)) {
      journal_.evicting(item);
    } else if (item.kind != EvictionKind::kLeafPages) {
      const StateKey state{item.node, item.tail};
      journal_.state_moved(state, place_of(nearest_of(tree_.state_below(state).tiers)));
    }
    census_.evicting(item);
  }

 private:
  bool stands_below(const EvictionItem& item) const {
    if (item.kind == EvictionKind::kLeafPages) return tree_.node(item.node).kv_below != 0;
    return tree_.state_below({item.node, item.tail}).tiers != 0;
  }

  const RadixTree& tree_;
  EventJournal journal_;
  TreeCensus census_;
};

}  // namespace tasuki::cache
