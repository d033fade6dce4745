// Prefixes as a tree of page-aligned runs, with what each run owns.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/cache_config.h"
#include "core/ids.h"
#include "nodes/ghost_list.h"
#include "nodes/node_pool.h"
#include "nodes/page_homes.h"
#include "policy/eviction_policy.h"
#include "tree/eviction_candidates.h"
#include "tree/pins.h"

namespace tasuki::cache {

// What an eviction freed: ids that the tree no longer holds.
struct Freed {
  std::vector<PageId> pages{};
  std::optional<SlotId> slot{};
};

// Owns the nodes: their tokens, pages, states, pins and ghosts, and lists for the eviction policy
// what nothing protects. Does not know who allocates ids, nor what an allocation holds beyond the
// node it stands in. Thread rule: single-threaded, as PrefixCache.
//
// Invariants: edges are whole pages and no two siblings share a first page; a ghost has only ghosts
// below it; a tier that holds a run or a state holds all runs above it; a node is an eviction
// candidate exactly if it is resident, unprotected, without state, tail or child; a state is one
// exactly if it is unpinned. A split keeps the id, state, tails and children on the deeper part. A
// node's lists hold its resident children and its ghosts apart, and the first pages of the resident
// ones, so that whatever number hangs on a node one of them is found, added or taken, and the
// nearest to a run found, in O(log n).
class RadixTree {
 public:
  // REQUIRES: shape passed validate().
  RadixTree(std::unique_ptr<EvictionPolicy> policy, const CacheConfig& shape);
  RadixTree(const RadixTree&) = delete;  // candidates and pins read this one's nodes
  RadixTree& operator=(const RadixTree&) = delete;

  // Structure, asked.
  const Node& node(NodeId id) const { return nodes_[id]; }
  bool alive(NodeId id, std::uint64_t serial) const { return nodes_.holds(id, serial); }
  std::optional<NodeId> root(std::string_view salt) const;
  std::optional<NodeId> find_child(const Node& parent, const PageKey& page) const;
  // Tokens at the start of `run` that the nearest resident child's first page shares.
  std::int64_t common_with_child(const Node& parent, Tokens run) const;
  // Asks memory for what find_child() will read, where there is other work to do first.
  void expect_child(const Node& parent, const PageKey& page) const;
  // The node on the path to `at` that holds the token before `depth`. REQUIRES: depth <= at's
  // depth.
  Position cover(NodeId at, std::int64_t depth) const;
  // Pages from the root to `end`, in logical order. REQUIRES: end.depth is whole pages, all
  // resident.
  // Has room for `spare` more.
  std::vector<PageId> pages_to(Position end, std::int64_t spare = 0) const;
  // REQUIRES: end.depth is whole pages.
  std::vector<Token> tokens_to(Position end) const;
  const Checkpoint& state(const StateKey& state) const {
    return node(state.node).state(state.tail);
  }
  // Where the first long prompt whose path holds the position ended; none where several ways lead
  // on from it.
  std::optional<std::int64_t> long_prompt_through(Position position) const;
  const NodePool& nodes() const { return nodes_; }
  const std::map<std::string, NodeId, std::less<>>& roots() const { return roots_; }

  // Structure, changed.
  NodeId open_root(std::string_view salt);
  // Drops the root if nothing hangs on it and nobody stands there.
  void close_root_if_bare(NodeId root);
  NodeId add_child(NodeId parent, Tokens run, std::vector<PageId> pages, Tick now);
  // What a tier below the arena alone is about to hold: a run, and a tail of it. REQUIRES: no child
  // begins, and no tail is, like it; set_kv_below() or set_state_below() follows.
  NodeId add_child_below(NodeId parent, Tokens run, Tick now);
  TailId add_tail_below(NodeId id, Tokens tokens);
  // Whether a run may be appended to the node's own edge instead of to a child.
  bool growable(const Node& node) const;
  void grow(NodeId leaf, Tokens run, const std::vector<PageId>& pages, Tick now);
  // Returns the new upper part, ending at `depth`. REQUIRES: start < depth < end, whole pages.
  NodeId split(NodeId id, std::int64_t depth);
  // KV for a ghost's whole edge. REQUIRES: its parent is resident.
  void revive(NodeId ghost, std::vector<PageId> pages, Tick now);

  // States. attach_* REQUIRE: the node is resident and has no such state.
  void attach_checkpoint(NodeId id, SlotId slot, const Birth& birth, Tick now);
  void mark_long_prompt(NodeId end, std::uint16_t beyond) { at(end).long_prompt_beyond = beyond; }
  TailId attach_tail(NodeId id, Tokens tokens, PageId page, SlotId slot, const Birth& birth,
                     Tick now);
  void touch(const StateKey& state, Tick now);
  // A neighbour serves nearly as well: it goes first until a request uses it.
  void put_on_probation(const StateKey& state);
  // Its tails are listed anew with the next change of the node: one of them is worth something else
  // for a reason that the tree does not know. Ignores a node that is gone.
  void weigh_again(NodeId id);
  // As far as is known no request will use it. Ignores a state that is gone.
  void expect_no_use(const StateKey& state);
  // For the policy: time, and the lives of states, ghosts too.
  EvictionPolicy& policy() { return candidates_.policy(); }

  Pins& pins() { return pins_; }
  const Pins& pins() const { return pins_; }

  // Moving: the same KV under another id. A page under an allocation stays where it is.
  bool movable(PageId page) const;
  // REQUIRES: the tree holds the page.
  NodeId home_of(PageId page) const { return homes_.of(page); }
  // REQUIRES: movable(from).
  void move_page(PageId from, PageId to);

  // Eviction.
  std::optional<EvictionItem> victim() const { return candidates_.policy().victim(); }
  std::optional<double> score(const EvictionItem& item) const {
    return candidates_.policy().score(item);
  }
  // What a tier below still holds is no ghost.
  Freed evict(const EvictionItem& item, Tick now);
  void forget_ghosts();
  // Forgets those that are too many: a split of a ghost makes two of one.
  void trim_ghosts();

  // Copies below the arena, as who keeps them says. What stands nowhere then is a ghost.
  void set_kv_below(NodeId id, TierBits tiers, Tick now);
  void set_state_below(const StateKey& state, StateBelow below, Tick now);
  // Tiers that hold the state. REQUIRES: the node is alive.
  StateBelow state_below(const StateKey& state) const;
  bool is_resident(const StateKey& state) const;

  // Counts.
  std::int64_t resident_nodes() const { return resident_nodes_; }
  std::int64_t states() const { return states_; }
  std::int64_t pages() const { return pages_; }
  const GhostList& ghosts() const { return ghosts_; }

  const EvictionCandidates& candidates() const { return candidates_; }

 private:
  Node& at(NodeId id) { return nodes_[id]; }
  // The first in the order of hashes, ghosts included.
  std::optional<NodeId> first_child(const Node& parent) const;
  // Into the parent's lists and out of them; the child stands, or is a ghost, as it says.
  void hang(Node& parent, const Node& child);
  void unhang(Node& parent, const Node& child);
  void become_ghost(Node& node, Tick now);
  void drop_node(NodeId id);
  void forget(const Ghost& ghost);
  void forget_tail(Node& host, const Tail& ghost);
  void forget_subtree(NodeId id);

  GhostList ghosts_;
  NodePool nodes_;
  PageHomes homes_;
  EvictionCandidates candidates_;
  Pins pins_;
  std::map<std::string, NodeId, std::less<>> roots_;
  std::int64_t next_tail_ = 1;
  std::int64_t resident_nodes_ = 0;  // without roots
  std::int64_t states_ = 0;
  std::int64_t pages_ = 0;
};

}  // namespace tasuki::cache
