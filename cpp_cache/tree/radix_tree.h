// Prefixes as a tree of page-aligned runs, with the pages and states of each run.
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

// Ids freed by an eviction.
struct Freed {
  std::vector<PageId> pages{};
  std::optional<SlotId> slot{};
};

// Owns the nodes: their tokens, pages, states, pins and ghosts, and lists unprotected items for the
// eviction policy. Does not know the allocator, or an allocation beyond its node. Thread rule:
// single-threaded, as PrefixCache.
//
// Invariants:
// 1. Edges are whole pages, and no two siblings share a first page.
// 2. A ghost has only ghosts below it.
// 3. A tier with a run or a state has all runs above it.
// 4. A node is an eviction candidate exactly if it is resident, unprotected, and without state,
//    tail or child. A state is one exactly if it is unpinned.
// 5. A split keeps the id, state, tails and children on the deeper part.
//
// A node lists its resident children, its ghosts, and the first pages of the resident ones
// separately. So any operation on one of them, and the search for the nearest run, is O(log n).
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
  // Return the number of tokens at the start of `run` shared with the nearest resident child's
  // first page.
  std::int64_t common_with_child(const Node& parent, Tokens run) const;
  // Prefetch the memory for find_child(), if there is other work to do first.
  void expect_child(const Node& parent, const PageKey& page) const;
  // Return the node on the path to `at` with the token before `depth`. REQUIRES: depth <= at's
  // depth.
  Position cover(NodeId at, std::int64_t depth) const;
  // Return the pages from the root to `end`, in logical order, with capacity for `spare` more.
  // REQUIRES: end.depth is whole pages, all resident.
  std::vector<PageId> pages_to(Position end, std::int64_t spare = 0) const;
  // REQUIRES: end.depth is whole pages.
  std::vector<Token> tokens_to(Position end) const;
  const Checkpoint& state(const StateKey& state) const {
    return node(state.node).state(state.tail);
  }
  // Return the end of the first long prompt through the position; none if several paths lead on
  // from it.
  std::optional<std::int64_t> long_prompt_through(Position position) const;
  const NodePool& nodes() const { return nodes_; }
  const std::map<std::string, NodeId, std::less<>>& roots() const { return roots_; }

  // Structure, changed.
  NodeId open_root(std::string_view salt);
  // Drop the root if it has no nodes, tails and allocations.
  void close_root_if_bare(NodeId root);
  NodeId add_child(NodeId parent, Tokens run, std::vector<PageId> pages, Tick now);
  // Add a run, or a tail, to be held only by a tier. REQUIRES: no child begins, and no tail is,
  // like it; set_kv_below() or set_state_below() follows.
  NodeId add_child_below(NodeId parent, Tokens run, Tick now);
  TailId add_tail_below(NodeId id, Tokens tokens);
  // Return true if a run may be appended to the node's own edge instead of to a child.
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
  // List its tails anew with the next change of the node, because the worth of one changed for an
  // outside reason. Ignores a dropped node.
  void weigh_again(NodeId id);
  // Mark a state as without expected use. Ignores a dropped state.
  void expect_no_use(const StateKey& state);
  // For the policy: time, and the lives of states, ghosts too.
  EvictionPolicy& policy() { return candidates_.policy(); }

  Pins& pins() { return pins_; }
  const Pins& pins() const { return pins_; }

  // Return true if the page may move to another id. A page under an allocation stays.
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
  // Evict the item. A prefix still in a tier is no ghost.
  Freed evict(const EvictionItem& item, Tick now);
  void forget_ghosts();
  // Forget ghosts beyond the limit: a split of a ghost makes two.
  void trim_ghosts();

  // Set the tiers with copies. A prefix without any place becomes a ghost.
  void set_kv_below(NodeId id, TierBits tiers, Tick now);
  void set_state_below(const StateKey& state, StateBelow below, Tick now);
  // Return the tiers with the state. REQUIRES: the node is alive.
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
  // Add the child to the parent's lists, or remove it. The child's own fields say if it is resident
  // or a ghost.
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
