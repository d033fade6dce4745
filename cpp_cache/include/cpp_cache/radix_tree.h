// Prefixes as a tree of page-aligned runs, with what each run owns.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cpp_cache/eviction.h"
#include "cpp_cache/ghosts.h"
#include "cpp_cache/ids.h"
#include "cpp_cache/node.h"
#include "cpp_cache/node_pool.h"
#include "cpp_cache/tree_config.h"

namespace tasuki::cache {

// What an eviction freed: ids that the tree no longer knows.
struct Freed {
  std::vector<PageId> pages;
  std::vector<SlotId> slots;
};

// By what a child is found. Refers to the tokens. REQUIRES: page.size() == kPageTokens.
struct PageKey {
  PageKey(Tokens page);  // implicit: a page names itself

  Tokens tokens;
  std::uint64_t hash;
};

// Owns the nodes: their tokens, pages, states, pins and ghosts, and tells the eviction policy what
// nothing protects. Does not know who allocates ids, nor what a lease holds beyond the node it
// stands in. Thread rule: single-threaded, as HybridTree.
//
// Invariants: edges are whole pages and no two siblings share a first page; a ghost has only ghosts
// below it; a node is an eviction candidate exactly if it is resident, unprotected, without state,
// tail or child; a state is one exactly if it is unpinned. A split keeps the id, state, tails and
// children on the deeper part.
class RadixTree {
 public:
  // REQUIRES: shape passed validate().
  RadixTree(std::unique_ptr<EvictionPolicy> policy, const TreeConfig& shape);

  // Structure, asked.
  const Node& node(NodeId id) const { return nodes_[id]; }
  bool alive(NodeId id, std::uint64_t serial) const { return nodes_.holds(id, serial); }
  std::optional<NodeId> root(std::string_view salt) const;
  std::optional<NodeId> find_child(const Node& parent, const PageKey& page) const;
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
  const Checkpoint& state(const StateRef& ref) const;
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
  void touch(const StateRef& ref, Tick now);
  // A neighbour serves nearly as well: it goes first until a request uses it.
  void put_on_probation(const StateRef& ref);
  // As far as is known no request will use it. Ignores a state that is gone.
  void expect_no_use(const StateRef& ref);
  // For the policy: time, lives of states (ghosts too) and what they tell of a conversation.
  EvictionPolicy& policy() { return *policy_; }

  // Pins. A lease stands in one node; that protects the KV of every ancestor.
  // Cost: the nodes up to the first ancestor that is protected already.
  void pin(NodeId id, LeaseId lease, Tick now);
  void unpin(NodeId id, LeaseId lease);
  void pin_state(const StateRef& ref);
  void unpin_state(const StateRef& ref);

  // Moving: the same KV under another id. A page under a lease stays where it is.
  bool movable(PageId page) const;
  // REQUIRES: movable(from).
  void move_page(PageId from, PageId to);

  // Eviction.
  std::optional<EvictionItem> victim() const { return policy_->victim(); }
  std::optional<double> score(const EvictionItem& item) const { return policy_->score(item); }
  Freed evict(const EvictionItem& item, Tick now);
  void forget_ghosts();

  // Counts.
  std::int64_t resident_nodes() const { return resident_nodes_; }
  std::int64_t states() const { return states_; }
  std::int64_t pinned_states() const { return pinned_states_; }
  std::int64_t pages() const { return pages_; }
  std::int64_t pinned_pages() const { return protected_pages_ + pinned_tail_pages_; }
  const GhostList& ghosts() const { return ghosts_; }

  // Throws IntegrityError naming the invariant (numbers of hybrid_tree.h).
  void check(Tick now) const;

 private:
  Node& at(NodeId id) { return nodes_[id]; }
  Tail& tail_at(Node& node, TailId id);
  Checkpoint& state_at(const StateRef& ref);
  void drop_node(NodeId id);
  void forget(const Ghost& ghost);
  void forget_subtree(NodeId id);
  void trim_ghosts();
  void protect(Node& node);
  void unprotect(Node& node);
  std::optional<EvictionItem> candidate(const Node& node) const;
  // Around any change to what decides candidate(node): withdraw before, list after.
  void withdraw(const Node& node);
  void list(const Node& node);
  bool lists(const Node& node, const Checkpoint& state) const;
  bool lists(const Node& node, const Tail& tail) const;
  // What the loss of the state would cost and free, for a policy that learns.
  Worth worth(const Node& node, const Checkpoint& state, bool is_tail) const;
  std::optional<StateRef> state_above(const Node& node) const;
  std::int64_t pages_alone(const Node& node) const;
  std::optional<StateKey> heir_of(const Node& node, bool is_tail) const;
  // Lists the nearest states below again, whose worth a change here altered.
  void weigh_below(const Node& node);
  std::size_t dense(PageId page) const;
  void settle_pages(const Node& node);
  void check_node(const Node& node, Tick now) const;

  TreeConfig shape_;
  std::unique_ptr<EvictionPolicy> policy_;
  GhostList ghosts_;
  NodePool nodes_;
  std::vector<NodeId> homes_;  // by dense page: where a page of the tree stands
  std::map<std::string, NodeId, std::less<>> roots_;
  std::int64_t next_tail_ = 1;
  std::int64_t resident_nodes_ = 0;  // without roots
  std::int64_t states_ = 0;
  std::int64_t pinned_states_ = 0;
  std::int64_t pages_ = 0;
  std::int64_t protected_pages_ = 0;
  std::int64_t pinned_tail_pages_ = 0;
};

}  // namespace tasuki::cache
