// Logical side of the prefix cache: owners of pages and slots, and their prefixes.
//
// Thread rule: single-threaded, owned by the engine loop. It uses no locks, no wall clock and no
// globals.
//
// Invariants, all checked by check_integrity():
//
//  1. free + working + tree + granted + quarantined == total, for slots, pages and slabs; no id is
//     in two places; pinned is a count on tree items.
//  2. Every checkpoint reachable from the tree holds the state of exactly the tokens on its path.
//     It stays at its boundary when nodes around it are split.
//  3. A node, page or checkpoint under an allocation is never evicted. Evicting a checkpoint frees
//     no KV. KV below the last checkpoint of a path goes first.
//  4. match() changes nothing. allocate() takes all it needs or nothing. Nothing asserts when a
//     pool is exhausted.
//  5. Same calls, same decisions: time is a counter of calls, ties are broken by id.
//  6. A match ends at most at prompt_len - 1: the last token is always computed.
//
// With tiers below the arena (CacheConfig::tiers, tiers/tiers.h):
//
//  7. A copy is used only after every acknowledgement of its transfer, all good. The arena gets
//     loaded pages then, and not before.
//  8. An evicted prefix in a tier is no ghost, is not forgotten, and is not reported as removed. A
//     prefix without any place is reported as removed once.
//  9. Each tier is closed upwards: it has all runs above each of its runs, and the KV of each of
//     its states. So the nearest place of a path's runs never comes nearer on the way down.
//  10. A load's source stays until the load ends; its target is its allocation's. A write's target
//      ids are reused only after every acknowledgement.
//  11. A write pins nothing in the arena: if its source is evicted or moved it is abandoned. So no
//      allocation waits for one.
//  12. Transfers end by calls: 5 holds with tiers too.
//
// Costs:
// - match: O(tokens) of memory compare cold, O(new tokens) through a cursor
// - allocate and release: O(pages of the allocation)
// - insert: O(new pages)
// - an eviction: O(log n)
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

// Owns and joins allocator, radix tree, allocations, cursors and quarantines. Holds ids, never
// memory. Every method throws InvalidArgument on an id not alive. Nothing has changed when one
// throws.
class PrefixCache {
 public:
  // make_prefix_cache() chooses the configured policy. trials: for kAuto, with a policy able to act
  // as the best one.
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
  // Return a number to compare before a retry: it changes after an insertion, release or eviction.
  // While it is unchanged, a retry of a refused allocation repeats the refusal.
  std::uint64_t room_version() const {
    return room_version_ + static_cast<std::uint64_t>(reclaimer_.log().count());
  }
  const Allocation& allocation(AllocationId id) const { return allocations_.at(id); }
  void check_integrity() const;

  // Return the policy in use now; for kAuto the best one.
  PolicyKind policy() const { return trials_ ? trials_->best() : config_.policy; }

  // Set the time for a learning policy, in milliseconds from any origin. Earlier times are ignored.
  // Without a call a second passes with every request.
  void advance_to(std::int64_t now_ms);

  // Sessions. A cursor vouches for its prompts: they extend the tokens inserted under it. So only
  // the page before its place is compared again.
  CursorId open_cursor(std::string_view salt) { return cursors_.open(salt); }
  CursorId fork_cursor(CursorId cursor) { return cursors_.fork(cursor); }
  void close_cursor(CursorId cursor);

  // Allocate for the prompt. nullopt: it will fit once others release. ImpossibleRequest: it never
  // will.
  std::optional<AllocationId> allocate(Tokens prompt, std::string_view salt,
                                       const AllocationTerms& terms);
  // Allocate pages and slots for a remote sender to write.
  std::optional<AllocationId> allocate_to_receive(Tokens prompt, std::string_view salt,
                                                  const AllocationTerms& terms);
  // Pin the usable part of the prompt for a reader. Takes no page and no slot, and counts as no
  // request. nullopt: nothing is usable.
  std::optional<AllocationId> allocate_to_send(Tokens prompt, std::string_view salt);
  bool extend(AllocationId id, std::int64_t capacity_tokens);
  void append(AllocationId id, Tokens tokens);
  // Take a slot for a checkpoint. During a load it serves the forward behind the load, and goes
  // with the allocation, into quarantine too.
  std::optional<SlotId> take_checkpoint_slot(AllocationId id);
  // Insert KV, and a state, up to `boundary`. REQUIRES: boundary <= tokens and capacity. The slot
  // is a working or destination slot of the allocation, with exactly the state after `boundary`
  // tokens. Inside a page a slot is needed. ENSURES: the slot is the tree's, or free if the same
  // checkpoint exists. `hint`: meaning of the answer's end; also kept for the prompt's end.
  void insert(AllocationId id, std::int64_t boundary, std::optional<SlotId> slot,
              CheckpointKind kind, TurnHint hint = TurnHint::kUnknown);
  // Insert a state in the middle of the allocation; otherwise as insert(). Inside a page its tail
  // gets a page of its own. Returns the source and target page of the KV to copy before any read.
  // nullopt: no copy; without a free page the slot is free and no state is kept. A message's end
  // replaces the start state if that is an earlier message's end. The page before that one must
  // have a state, or be unable to have one.
  std::optional<std::pair<PageId, PageId>> insert_midway(AllocationId id, std::int64_t boundary,
                                                         SlotId slot, CheckpointKind kind,
                                                         TurnHint hint = TurnHint::kUnknown);
  void release(AllocationId id);

  // Tiers below the arena. The caller copies an allocation's load (Allocation::load) and
  // acknowledges it. Until then the allocation is as if granted: nothing may be inserted, and it
  // can be quarantined. After a failed load it is void and counts as no request: the caller
  // releases it and allocates again. A write works alike, whenever the caller asks for one.
  std::optional<TierWrite> next_write();
  // Return the label of a running write of next_write(). Throws InvalidArgument for any other, and
  // after its source went.
  WriteLabel label_of(TransferId write) const;
  // Add a state and its KV kept by a tier over a restart. Returns false if one of its ids is taken,
  // or it exists already. Throws InvalidArgument if the counts do not fit, or after the first
  // request.
  bool restore(TierId tier, const KeptState& kept);
  // Add a state and its KV written to a tier by another node; the tier has ids for them from now
  // on. nullopt: no room, it exists already, or its KV is being written. Throws InvalidArgument
  // without tokens or for an unknown tier.
  std::optional<AdoptedState> adopt(TierId tier, std::string_view salt, Tokens tokens,
                                    CheckpointKind kind);
  // Acknowledge once per rank; all ranks are awaited. Throws InvalidArgument if the transfer has
  // ended.
  void acknowledge(TransferId id, bool is_good);

  // Hand-over.
  void grant(AllocationId id);
  // Every layer chunk has arrived and was verified: granted becomes working again.
  void accept_received(AllocationId id);
  QuarantineId quarantine(AllocationId id);
  void free_quarantined(QuarantineId id);

  // Return the moves decided since the last call, in order. Copy them before any write to an id
  // handed out by the deciding call.
  std::vector<PageMove> drain_moves() { return reclaimer_.drain_moves(); }

  // Evictions decided since the last call.
  std::vector<Eviction> drain_evictions() { return reclaimer_.drain_evictions(); }

  // Return a view of the tree. It changes no decision. From the first call until long after the
  // last, every change counts its ancestors. See view_tree().
  std::optional<TreeView> view(std::optional<NodeName> under, std::int64_t limit);
  // Return the deepest node with KV of the tokens; nullopt: none under this salt.
  std::optional<NodeName> node_at(Tokens tokens, std::string_view salt) const;
  // Return existing states, the most valuable first, with their tokens: see requests/held_states.h.
  std::vector<HeldState> most_valuable(std::int64_t limit) const;
  std::optional<StatePath> path_to(const HeldState& state) const {
    return tasuki::cache::path_to(tree_, state);
  }

  // Events: of the tree's own pages and states, never of an allocation's. Watching changes no
  // decision.
  EventJournal& journal() { return observers_.journal(); }

  // Evict all unpinned entries and forget every ghost. Returns the number of dropped nodes.
  std::int64_t flush();

 private:
  Found find(Tokens prompt, std::string_view salt, std::optional<CursorId> cursor) const;
  std::optional<AllocationId> admit(Tokens prompt, std::string_view salt,
                                    const AllocationTerms& terms, const AdmissionPlan& plan);
  void check_insertable(const Allocation& allocation, std::int64_t boundary,
                        std::optional<SlotId> slot) const;
  // Give the allocation's tokens up to `whole` to the tree. Returns their end. REQUIRES: whole
  // pages.
  Position cover_path(Allocation& allocation, std::int64_t whole);
  // Drop the message's end used as the allocation's start, if another one replaces it.
  void replace_source(Allocation& allocation) const;
  void stand_at(Allocation& allocation, Position place);
  // Give all ids of a grant to the new owner.
  void hand_over(const Allocation& allocation, Owner from, Owner to);
  // Unpin the allocation and forget it. Its own pages and working slots already have other owners.
  void end(const Allocation& allocation);
  // Plan the load with the earliest end of the prompt, if one is faster than no load.
  void choose_load(Found& found, const AllocationTerms& terms, AdmissionPlan& plan) const;
  void begin_load(Allocation& allocation, const PlannedLoad& load);
  void end_load(Allocation& allocation, bool landed);
  void leave_void(Allocation& allocation);
  // Serve the request in the trials too, and follow the best policy.
  void try_policies(const Allocation& allocation);

  CacheConfig config_;
  SlabAllocator allocator_;
  QuarantineTable quarantines_;
  LifeRelay* relay_ = nullptr;  // the tree's policy; null without tiers
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
