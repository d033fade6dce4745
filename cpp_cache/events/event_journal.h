// Journal of the tree's changes for watchers.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "events/cache_event.h"
#include "policy/eviction_policy.h"
#include "tree/radix_tree.h"

namespace tasuki::cache {

// Owns the watchers, their bounded queues and, while there is one, the hash of every node's path.
// Hashes nothing without a watcher. Does not know allocations or ids of pages and slots. Thread
// rule: single-threaded, as PrefixCache.
//
// Invariants: a parent is stored before its child and removed after it. A stored prefix is removed
// once or cleared. A split or a move is no event. Cost of a change: its tokens.
class EventJournal {
 public:
  explicit EventJournal(const RadixTree& tree) : tree_(tree) {}

  // capacity: most undrained events. REQUIRES: capacity >= 1.
  WatchId open(EventStream stream, std::int64_t capacity);
  // Throws InvalidArgument if the watch is not open, as close() does.
  EventBatch drain(WatchId id);
  void close(WatchId id);
  std::int64_t watchers() const { return static_cast<std::int64_t>(watches_.size()); }

  // Call these after the tree changed. All cost nothing without a watcher. The pages of `node` from
  // `start` on, in tokens, got KV.
  void stored(NodeId node, std::int64_t start) {
    if (!watches_.empty()) report_stored(node, start);
  }
  void split(NodeId upper) {
    if (!watches_.empty()) hash(tree_.node(upper));
  }
  void state_stored(const StateKey& state) {
    if (!watches_.empty()) report_state(EventKind::kCheckpointStored, state);
  }
  // The state's nearest place is `place` from now on, and was another before.
  void state_moved(const StateKey& state, std::uint8_t place) {
    if (!watches_.empty() && !clearing_) report_moved(state, place);
  }
  // Call this before the tree drops the tokens.
  void evicting(const EvictionItem& item) {
    if (!watches_.empty() && !clearing_) report_evicted(item);
  }
  // Everything is evicted between begin and end, as one event.
  void begin_clearing() { clearing_ = true; }
  void end_clearing();

 private:
  struct Watch {
    EventStream stream;
    std::size_t capacity;
    std::deque<CacheEvent> waiting{};
    std::optional<std::uint64_t> first_lost{};
    bool needs_snapshot = true;
  };
  // Hash state used to continue with a node's children.
  struct Known {
    PrefixHasher hasher;
    PrefixHash before_end;  // one page up
    PrefixHash end;
  };

  Watch& watch_of(WatchId id);
  std::uint64_t& sequence_of(EventStream stream) {
    return sequences_[static_cast<std::size_t>(stream)];
  }
  Known at(const Node& node) const;
  Known before(const Node& node) const { return at(tree_.node(*node.parent)); }
  // Hash the node from `start` on, and give `each` the added part of every page.
  template <typename Each>
  Known walk(const Node& node, std::int64_t start, Each each) const;
  void remember(const Node& node, const Known& known);
  void hash(const Node& node);
  void hash_all();
  void report_stored(NodeId node, std::int64_t start);
  void report_state(EventKind kind, const StateKey& state);
  void report_moved(const StateKey& state, std::uint8_t place);
  void report_evicted(const EvictionItem& item);
  CacheEvent event_of(EventKind kind, const StateKey& state) const;
  // page: the tokens of a stored page, if a watcher wants them.
  void report(CacheEvent event, Tokens page = {});
  void report_on(EventStream stream, CacheEvent event);
  std::vector<CacheEvent> snapshot(EventStream stream);

  const RadixTree& tree_;
  std::map<WatchId, Watch> watches_;
  std::vector<Known> known_;         // by node; roots are hashed anew
  std::uint64_t sequences_[3] = {};  // by stream, of the last event
  std::int64_t next_watch_ = 1;
  bool clearing_ = false;
};

}  // namespace tasuki::cache
