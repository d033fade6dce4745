// The logical side of the prefix cache: who holds which page and slot, and which prefix it serves.
//
// Thread rule: single-threaded, owned by the engine loop. No locks, no wall clock, no globals.
//
// Invariants, all checked by check_integrity():
//  1. free + working + tree + granted + quarantined == total, for slots, pages and slabs; no id is
//     in two places; pinned is a count on tree items.
//  2. Every checkpoint reachable from the tree holds the state of exactly the tokens on its
//     path: it stays at the boundary it was published at, whatever splits around it.
//  3. A leased node, page or checkpoint is never evicted; evicting a checkpoint frees no KV. KV
//     below the last checkpoint of a path goes first.
//  4. match() changes nothing. lease() takes all it needs or nothing. Nothing asserts when
//     something is exhausted.
//  5. Same calls, same decisions: time is a counter of calls, ties are broken by id.
//  6. A match ends at most at prompt_len - 1: the last token is always computed.
//
// Cost: match O(tokens) of memory compare cold, O(new tokens) through a cursor; lease and release
// O(pages of the lease); publish O(new pages); an eviction O(log n).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cpp_cache/branch_depths.h"
#include "cpp_cache/earnings.h"
#include "cpp_cache/event_journal.h"
#include "cpp_cache/eviction_log.h"
#include "cpp_cache/lease.h"
#include "cpp_cache/matcher.h"
#include "cpp_cache/policy_trials.h"
#include "cpp_cache/radix_tree.h"
#include "cpp_cache/slab_allocator.h"
#include "cpp_cache/stats.h"
#include "cpp_cache/tree_census.h"
#include "cpp_cache/tree_config.h"
#include "cpp_cache/tree_view.h"

namespace tasuki::cache {

// What a request asks for beside its prompt.
struct LeaseTerms {
  std::int64_t capacity_tokens;
  std::int64_t working_slots;
  std::optional<CursorId> cursor;
};

// The KV of `from` now belongs at `to`.
struct PageMove {
  PageId from;
  PageId to;
};

// Owns allocator, radix tree, leases, cursors and quarantines, and joins them. Knows ids, never
// memory. Every method throws InvalidArgument on an id that is not alive; nothing has changed when
// one throws.
class HybridTree {
 public:
  explicit HybridTree(const TreeConfig& config);
  // With a policy of its own instead of the one that the config names.
  HybridTree(const TreeConfig& config, std::unique_ptr<EvictionPolicy> policy);
  HybridTree(const HybridTree&) = delete;  // the journal reads this one's nodes
  HybridTree& operator=(const HybridTree&) = delete;

  // Ask.
  const TreeConfig& config() const { return config_; }
  Match match(Tokens prompt, std::string_view salt, std::optional<CursorId> cursor) const;
  std::int64_t capacity_tokens(std::int64_t working_slots) const;
  TreeStats stats() const;
  // Changes whenever a lease that was refused might no longer be: something was published, released
  // or evicted. While it stands still a retry would only repeat the refusal.
  std::uint64_t room_version() const { return room_version_; }
  const Lease& lease_of(LeaseId id) const;
  void check_integrity() const;

  // The policy that chooses victims now: of kAuto the one that does best.
  PolicyKind policy() const;

  // The time, in milliseconds from any origin, for a policy that learns. Earlier times are ignored.
  // A tree that is never told lets a second pass with every request.
  void advance_to(std::int64_t now_ms);

  // Sessions. A cursor vouches that prompts given with it extend what was published under it: only
  // the page before its place is compared again.
  CursorId open_cursor(std::string_view salt);
  CursorId fork_cursor(CursorId cursor);
  void close_cursor(CursorId cursor);

  // Do. nullopt: it will fit once others release. ImpossibleRequest: it never will.
  std::optional<LeaseId> lease(Tokens prompt, std::string_view salt, const LeaseTerms& terms);
  std::optional<LeaseId> lease_receive(Tokens prompt, std::string_view salt,
                                       const LeaseTerms& terms);
  // Pins what is usable of the prompt for somebody who reads it; takes no page and no slot, and
  // counts as no request. nullopt: nothing is usable.
  std::optional<LeaseId> lease_to_send(Tokens prompt, std::string_view salt);
  bool extend(LeaseId id, std::int64_t capacity_tokens);
  void append(LeaseId id, Tokens tokens);
  std::optional<SlotId> take_checkpoint_slot(LeaseId id);
  // REQUIRES: boundary <= tokens and capacity; slot is a working or destination slot of the lease
  // that holds exactly the state after boundary tokens; inside a page a slot is needed. ENSURES:
  // the slot is the tree's, or free where the same checkpoint stands already.
  // `hint` is what the end of the answer tells; it is remembered of the prompt's end too.
  void publish(LeaseId id, std::int64_t boundary, std::optional<SlotId> slot, CheckpointKind kind,
               TurnHint hint = TurnHint::kUnknown);
  void release(LeaseId id);

  // Hand-over.
  void grant(LeaseId id);
  void settle(LeaseId id);
  QuarantineId quarantine(LeaseId id);
  void free_quarantined(QuarantineId id);

  // Moves decided since the last call, in order: to be copied before anything is written to an id
  // that the call which decided them handed out.
  std::vector<PageMove> drain_moves();

  // Evictions decided since the last call.
  std::vector<Eviction> drain_evictions() { return evictions_.drain(); }

  // What stands, for somebody to look at: changes no decision, but from the first one on, and until
  // long after the last, every change counts its ancestors. See view_tree().
  std::optional<TreeView> view(std::optional<NodeName> under, std::int64_t limit);
  // The deepest node that holds KV of the tokens; nullopt: none of that salt.
  std::optional<NodeName> node_at(Tokens tokens, std::string_view salt) const;

  // Events: of the tree's own pages and states, never of a lease's. Watching changes no decision.
  EventJournal& journal() { return journal_; }

  // Evicts all that is unpinned and forgets every ghost. Returns nodes dropped.
  std::int64_t flush();

 private:
  struct Cursor {
    std::string salt;
    std::optional<Position> place{};
    std::uint64_t serial = 0;       // of place's node
    std::optional<StateRef> end{};  // where its latest turn ended
    std::uint64_t end_serial = 0;   // of end's node
  };
  struct Quarantine {
    std::vector<PageId> pages;
    std::vector<SlotId> slots;
  };
  struct LeftPrompt {
    std::optional<std::int64_t> tokens{};  // of the whole prompt; nullopt: none was left
    std::int64_t depth = 0;
  };
  // What an admission pins and starts from.
  struct Plan {
    Match match{};
    std::int64_t cached_tokens = 0;
    std::optional<Position> standing{};  // nullopt: the root
    std::optional<StateRef> source{};
  };

  Lease& live(LeaseId id);
  Lease& working(LeaseId id, std::string_view verb);
  Cursor& cursor_of(CursorId id);
  std::optional<Position> start_of(Tokens prompt, std::string_view salt,
                                   std::optional<CursorId> cursor) const;
  Found find(Tokens prompt, std::string_view salt, std::optional<CursorId> cursor) const;
  void validate(Tokens prompt, const LeaseTerms& terms) const;
  void check_possible(std::int64_t capacity_tokens, std::int64_t working_slots) const;
  std::optional<LeaseId> admit(Tokens prompt, std::string_view salt, const LeaseTerms& terms,
                               const Plan& plan);
  std::int64_t own_pages(const LeaseTerms& terms, const Plan& plan) const;
  // Whether the plan would fit if no other lease were held.
  bool fits_alone(const LeaseTerms& terms, const Plan& plan) const;

  // Whether evicting all that is unpinned would make room.
  bool reclaimable(std::int64_t pages, std::int64_t slots) const;
  std::int64_t emptiable_slabs() const;
  // Evicts for `lease` until it fits; false, with nothing evicted, where it cannot.
  bool make_room(std::int64_t pages, std::int64_t slots, LeaseId lease);
  void evict(const EvictionItem& item, std::optional<LeaseId> lease);
  // What is told of it; before it is evicted.
  Eviction described(const EvictionItem& item, std::optional<LeaseId> lease) const;
  // Moves the pages of one slab into gaps of others; false where no slab can be emptied so.
  bool empty_a_slab();

  NodeId insert_path(Lease& lease, std::int64_t end);
  NodeId split(NodeId id, std::int64_t depth);
  std::vector<PageId> give_pages(Lease& lease, std::int64_t from, std::int64_t to);
  void publish_state(Lease& lease, NodeId node, std::int64_t boundary, SlotId slot,
                     CheckpointKind kind, TurnHint hint);
  // Tells the policy what a new state means for those that stand before it.
  void follow_up(Lease& lease, const StateRef& state, std::int64_t boundary, CheckpointKind kind,
                 TurnHint hint);
  // Tells the policy of the states a request used, or would have used were they still there.
  std::int64_t note_use(const Found& found, const Plan& plan);
  // The long prompt, if any, whose KV a request leaves, and where.
  LeftPrompt left_prompt(const Found& found) const;
  // For where later prompts leave it. REQUIRES: the lease published its prompt's end there.
  void note_long_prompt(const Lease& lease, const Node& end);
  // Learns from what an admitted request left; says where its own first-seen part should keep
  // states.
  std::vector<std::int64_t> place_interior(const LeftPrompt& left, const Match& match);
  void stand_at(Lease& lease, Position place);
  void give_slot(Lease& lease, SlotId slot);
  bool holds_slot(const Lease& lease, SlotId slot) const;
  void end_lease(LeaseId id);
  // Lets the trials serve what the lease served, and follows the policy that does best.
  void try_policies(const Lease& lease);

  TreeConfig config_;
  SlabAllocator allocator_;
  RadixTree tree_;
  EventJournal journal_{tree_};
  EvictionLog evictions_;
  TreeCensus census_{tree_};
  LeaseBook leases_;
  std::map<CursorId, Cursor> cursors_;
  std::map<QuarantineId, Quarantine> quarantines_;
  std::unique_ptr<PolicyTrials> trials_;  // of PolicyKind::kAuto
  std::vector<PageMove> moves_;
  BranchDepths depths_;
  Earnings earnings_;
  Tick clock_ = 0;
  std::uint64_t room_version_ = 0;
  std::int64_t now_ms_ = 0;
  bool told_time_ = false;
  std::int64_t next_lease_ = 1;
  std::int64_t next_cursor_ = 1;
  std::int64_t next_quarantine_ = 1;
  std::int64_t evicted_pages_ = 0;
  std::int64_t evicted_checkpoints_ = 0;
  std::int64_t leased_requests_ = 0;
  std::int64_t prompt_tokens_ = 0;
  std::int64_t usable_tokens_ = 0;
  Causes lost_;
};

}  // namespace tasuki::cache
