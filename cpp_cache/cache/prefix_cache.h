// The logical side of the prefix cache: who holds which page and slot, and which prefix it serves.
//
// Thread rule: single-threaded, owned by the engine loop. No locks, no wall clock, no globals.
//
// Invariants, all checked by check_integrity():
//  1. free + working + tree + granted + quarantined == total, for slots, pages and slabs; no id is
//     in two places; pinned is a count on tree items.
//  2. Every checkpoint reachable from the tree holds the state of exactly the tokens on its
//     path: it stays at the boundary it was inserted at, whatever splits around it.
//  3. A node, page or checkpoint under an allocation is never evicted; evicting a checkpoint frees
//     no KV. KV below the last checkpoint of a path goes first.
//  4. match() changes nothing. allocate() takes all it needs or nothing. Nothing asserts when
//     something is exhausted.
//  5. Same calls, same decisions: time is a counter of calls, ties are broken by id.
//  6. A match ends at most at prompt_len - 1: the last token is always computed.
// With tiers below the arena (CacheConfig::tiers, tiers/tiers.h):
//  7. A copy is of use only after every acknowledgement of the transfer that brought it, all good;
//     the arena gets what was loaded then, and not before.
//  8. What the arena evicts and a tier has is no ghost, is not forgotten, and is reported to nobody
//     as removed; what no place has any more is, once.
//  9. Each tier is closed upwards: it has all runs above one that it has, and the KV of each of its
//     states. So the nearest place of a path's runs never comes nearer on the way down.
// 10. What a load reads stays where it is until that ends; what it writes is its allocation's. What
//     a write brings is written to ids of nobody else's until every acknowledgement has come.
// 11. A write pins nothing in the arena: where its source is evicted or moved it is abandoned. So
//     no allocation ever waits for one.
// 12. Transfers end by calls: 5 holds with tiers too.
//
// Cost: match O(tokens) of memory compare cold, O(new tokens) through a cursor; allocate and
// release O(pages of the allocation); insert O(new pages); an eviction O(log n).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "alloc/quarantine_table.h"
#include "alloc/slab_allocator.h"
#include "cache/admission.h"
#include "cache/cache_stats.h"
#include "cache/inserter.h"
#include "cache/reclaimer.h"
#include "cache/tree_observers.h"
#include "core/cache_config.h"
#include "placement/interior_placement.h"
#include "requests/allocation_table.h"
#include "requests/cursor_table.h"
#include "requests/held_states.h"
#include "requests/matcher.h"
#include "requests/reuse_reports.h"
#include "tiers/tiers.h"
#include "tree/radix_tree.h"
#include "trials/policy_trials.h"
#include "view/tree_view.h"

namespace tasuki::cache {

// Owns allocator, radix tree, allocations, cursors and quarantines, and joins them. Holds ids,
// never memory. Every method throws InvalidArgument on an id that is not alive; nothing has changed
// when one throws.
class PrefixCache {
 public:
  // make_prefix_cache() chooses the policy that the config names. trials: of kAuto, to be followed
  // by a policy that can act as their best.
  PrefixCache(const CacheConfig& config, std::unique_ptr<EvictionPolicy> policy,
              std::unique_ptr<PolicyTrials> trials = nullptr);
  ~PrefixCache();
  PrefixCache(const PrefixCache&) = delete;  // the parts refer to each other
  PrefixCache& operator=(const PrefixCache&) = delete;

  // Ask.
  const CacheConfig& config() const { return config_; }
  Match match(Tokens prompt, std::string_view salt, std::optional<CursorId> cursor) const;
  std::int64_t capacity_tokens(std::int64_t working_slots) const;
  CacheStats stats() const;
  // Changes whenever an allocation that was refused might no longer be: something was inserted,
  // released or evicted. While it stands still a retry would only repeat the refusal.
  std::uint64_t room_version() const {
    return room_version_ + static_cast<std::uint64_t>(reclaimer_.log().count());
  }
  const Allocation& allocation(AllocationId id) const { return allocations_.at(id); }
  void check_integrity() const;

  // The policy that chooses victims now: of kAuto the one that does best.
  PolicyKind policy() const { return trials_ ? trials_->best() : config_.policy; }

  // The time, in milliseconds from any origin, for a policy that learns. Earlier times are ignored.
  // Without a call a second passes with every request.
  void advance_to(std::int64_t now_ms);

  // Sessions. A cursor vouches that prompts given with it extend what was inserted under it: only
  // the page before its place is compared again.
  CursorId open_cursor(std::string_view salt) { return cursors_.open(salt); }
  CursorId fork_cursor(CursorId cursor) { return cursors_.fork(cursor); }
  void close_cursor(CursorId cursor);

  // Do. nullopt: it will fit once others release. ImpossibleRequest: it never will.
  std::optional<AllocationId> allocate(Tokens prompt, std::string_view salt,
                                       const AllocationTerms& terms);
  // To be written by a remote sender.
  std::optional<AllocationId> allocate_to_receive(Tokens prompt, std::string_view salt,
                                                  const AllocationTerms& terms);
  // Pins what is usable of the prompt for somebody who reads it; takes no page and no slot, and
  // counts as no request. nullopt: nothing is usable.
  std::optional<AllocationId> allocate_to_send(Tokens prompt, std::string_view salt);
  bool extend(AllocationId id, std::int64_t capacity_tokens);
  void append(AllocationId id, Tokens tokens);
  // Also of one that is being loaded, for what is computed behind the load: it goes with the
  // allocation, into quarantine too.
  std::optional<SlotId> take_checkpoint_slot(AllocationId id);
  // REQUIRES: boundary <= tokens and capacity; slot is a working or destination slot of the
  // allocation that holds exactly the state after boundary tokens; inside a page a slot is needed.
  // ENSURES: the slot is the tree's, or free where the same checkpoint stands already.
  // `hint` is what the answer's end means; it is remembered of the prompt's end too.
  void insert(AllocationId id, std::int64_t boundary, std::optional<SlotId> slot,
              CheckpointKind kind, TurnHint hint = TurnHint::kUnknown);
  // As insert(), of a state behind which the allocation goes on. Inside a page its tail gets a page
  // of its own: returned is from where the caller copies the KV, and to where, before anybody reads
  // it. nullopt: nothing is to be copied; where there was no page for it the slot is free, and
  // nothing stands. A message's end takes the place of the one that the allocation started from, if
  // a state stands on the page before that one, or none could.
  std::optional<std::pair<PageId, PageId>> insert_midway(AllocationId id, std::int64_t boundary,
                                                         SlotId slot, CheckpointKind kind,
                                                         TurnHint hint = TurnHint::kUnknown);
  void release(AllocationId id);

  // Tiers below the arena. What an allocation loads (Allocation::load) is copied by the caller, who
  // then acknowledges it; until it has ended the allocation is as if granted: nothing may be
  // inserted, and it can be quarantined. One whose load did not land is void and counts as no
  // request: the caller releases it and allocates again. The same of a write, which the caller asks
  // for when it likes.
  std::optional<TierWrite> next_write();
  // Of a write that next_write() returned and that has not ended. Throws InvalidArgument of any
  // other, and of one whose source went.
  WriteLabel label_of(TransferId write) const;
  // A tier has this state and its KV from before a restart. False: an id of it is another's, or it
  // stands already. Throws InvalidArgument where the counts do not fit, or requests came before.
  bool restore(TierId tier, const KeptState& kept);
  // A tier has this state and its KV by somebody else's hand, and has ids for them from now on.
  // nullopt: there is no room, it stands somewhere already, or KV of it is being written. Throws
  // InvalidArgument where there are no tokens, or no such tier.
  std::optional<AdoptedState> adopt(TierId tier, std::string_view salt, Tokens tokens,
                                    CheckpointKind kind);
  // Once for each rank, all of which are awaited. Throws InvalidArgument where the transfer has
  // ended.
  void acknowledge(TransferId id, bool is_good);

  // Hand-over.
  void grant(AllocationId id);
  // Every window has landed and was verified: granted becomes working again.
  void accept_received(AllocationId id);
  QuarantineId quarantine(AllocationId id);
  void free_quarantined(QuarantineId id);

  // Moves decided since the last call, in order: to be copied before anything is written to an id
  // that the call which decided them handed out.
  std::vector<PageMove> drain_moves() { return reclaimer_.drain_moves(); }

  // Evictions decided since the last call.
  std::vector<Eviction> drain_evictions() { return reclaimer_.drain_evictions(); }

  // What stands, for somebody to look at: changes no decision, but from the first one on, and until
  // long after the last, every change counts its ancestors. See view_tree().
  std::optional<TreeView> view(std::optional<NodeName> under, std::int64_t limit);
  // The deepest node that holds KV of the tokens; nullopt: none of that salt.
  std::optional<NodeName> node_at(Tokens tokens, std::string_view salt) const;
  // The states that stand, the most valuable first, and the tokens behind which one of them does:
  // see requests/held_states.h.
  std::vector<HeldState> most_valuable(std::int64_t limit) const;
  std::optional<StatePath> path_to(const HeldState& state) const {
    return tasuki::cache::path_to(tree_, state);
  }

  // Events: of the tree's own pages and states, never of an allocation's. Watching changes no
  // decision.
  EventJournal& journal() { return observers_.journal(); }

  // Evicts all that is unpinned and forgets every ghost. Returns nodes dropped.
  std::int64_t flush();

 private:
  Found find(Tokens prompt, std::string_view salt, std::optional<CursorId> cursor) const;
  std::optional<AllocationId> admit(Tokens prompt, std::string_view salt,
                                    const AllocationTerms& terms, const AdmissionPlan& plan);
  void check_insertable(const Allocation& allocation, std::int64_t boundary,
                        std::optional<SlotId> slot) const;
  // Its tokens up to there are the tree's; returns where they end. REQUIRES: whole pages.
  Position cover_path(Allocation& allocation, std::int64_t whole);
  // Another message's end stands now in place of the one that it started from, if it did.
  void replace_source(Allocation& allocation) const;
  void stand_at(Allocation& allocation, Position place);
  // To the new owner, all that a grant covers.
  void hand_over(const Allocation& allocation, Owner from, Owner to);
  // Unpins it and forgets it; its own pages and working slots are others' already.
  void end(const Allocation& allocation);
  // Plans the load that gets the prompt done soonest, if any does so sooner than none.
  void choose_load(Found& found, const AllocationTerms& terms, AdmissionPlan& plan) const;
  void begin_load(Allocation& allocation, const PlannedLoad& load);
  void end_load(Allocation& allocation, bool landed);
  void leave_void(Allocation& allocation);
  // Lets the trials serve what the request was served, and follows the policy that does best.
  void try_policies(const Allocation& allocation);

  CacheConfig config_;
  SlabAllocator allocator_;
  QuarantineTable quarantines_;
  LifeRelay* relay_ = nullptr;  // the tree's policy, where there are tiers
  RadixTree tree_;
  TreeObservers observers_;
  std::unique_ptr<Tiers> tiers_;  // nullptr: there are none
  AllocationTable allocations_;
  CursorTable cursors_;
  InteriorPlacement interior_;
  ReuseReports reports_;
  Reclaimer reclaimer_;
  Admission admission_;
  Inserter inserter_;
  std::unique_ptr<PolicyTrials> trials_;
  Tick clock_ = 0;
  std::uint64_t room_version_ = 0;  // without evictions
  std::int64_t now_ms_ = 0;
  bool has_clock_ = false;  // the time is injected
  std::int64_t allocated_requests_ = 0;
  std::int64_t prompt_tokens_ = 0;
  std::int64_t usable_tokens_ = 0;
  MissReasons miss_reasons_;
};

}  // namespace tasuki::cache
