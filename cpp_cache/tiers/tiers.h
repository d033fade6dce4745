// Tiers below the arena, and transfers between them.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "core/cache_config.h"
#include "events/event_journal.h"
#include "policy/life_relay.h"
#include "tiers/lower_tier.h"
#include "tiers/tier_counts.h"
#include "tiers/transfer.h"
#include "tiers/write_budget.h"
#include "tiers/write_queue.h"
#include "tree/radix_tree.h"

namespace tasuki::cache {

// A load with all its acknowledgements.
struct EndedLoad {
  AllocationId allocation;
  bool landed;
};

// Owns the tiers, the waiting writes and the transfers in flight. Holds ids and moves no byte: the
// caller copies and acknowledges. Every state of the arena is written to the first tier, with the
// runs of its path lacking there, all or nothing. A tier's victim is first written to the next
// tier, if it is worth the cost and the budget allows. Invariants: those of cache/prefix_cache.h
// from 7 on. Thread rule: single-threaded, as PrefixCache.
class Tiers {
 public:
  // REQUIRES: all of them outlive it; config names a tier at least.
  Tiers(const CacheConfig& config, RadixTree& tree, EventJournal& journal, LifeRelay& lives);

  // Ask.
  const std::vector<std::unique_ptr<LowerTier>>& all() const { return tiers_; }
  TierCounts counts(TierId tier) const;
  std::int64_t waiting_writes() const { return queue_.size(); }
  // Return the number of runs and states left without a copy in any tier.
  std::int64_t lost() const { return lost_; }
  // Return the label of a running write. Throws InvalidArgument if there is none, or it was
  // abandoned.
  WriteLabel label_of(TransferId write) const;
  bool is_read() const;
  bool holds_any() const;

  // Reports of the arena's changes. Call them after the tree changed, `leaving` and `moving`
  // before.
  void state_stored(const StateKey& state);
  void split(NodeId upper);
  void leaving(const EvictionItem& item);
  void moving(NodeId home);
  void used(const StateKey& state, Tick now);
  void put_on_probation(const StateKey& state);
  // Ignores a dropped state.
  void expect_no_use(const StateKey& state);
  void advance(std::int64_t now_ms);

  // Begin the next copy downwards. nullopt: none waits, or there is no room yet.
  std::optional<TierWrite> next_write(Tick now);
  // Begin to load a state below the arena, and the KV behind `arena_tokens`, from the nearest place
  // each. targets: pages of the allocation, by logical page. REQUIRES: a tier holds the state.
  TierLoad begin_load(const StateKey& state, std::int64_t arena_tokens, AllocationId allocation,
                      std::span<const PageId> targets, SlotId target, Tick now);
  // Give up a load after its allocation is gone or no longer needs it. Acknowledgements still come.
  void abandon_load(TransferId id);
  // Acknowledge for one rank; all ranks are awaited, also after a bad one. Returns the load if this
  // was its last acknowledgement. Throws InvalidArgument if the transfer has ended or never began.
  std::optional<EndedLoad> acknowledge(TransferId id, bool is_good, Tick now);
  // Add a state kept over a restart. Returns false, with nothing changed, if one of its ids is
  // taken, or the tier has the state by now. REQUIRES: a page for each of its tokens' pages.
  bool restore(TierId tier, const KeptState& kept, Tick now);
  // Add a state written by another node: new ids are given to its missing parts. nullopt, with
  // nothing usable changed: no room, the state exists already, or KV of its path is being written.
  // REQUIRES: tokens.
  std::optional<AdoptedState> adopt(TierId tier, std::string_view salt, Tokens tokens,
                                    CheckpointKind kind, Tick now);
  // Drop all copies without readers, and all waiting writes.
  void drop_all(Tick now);

 private:
  struct Transfer {
    std::variant<WriteInFlight, LoadInFlight> what;
    std::int32_t awaited;
    bool is_good = true;
  };
  enum class Begun : std::uint8_t { kYes, kLater, kNever };

  LowerTier& at(TierId tier) { return *tiers_[raw(tier)]; }
  const LowerTier& at(TierId tier) const { return *tiers_[raw(tier)]; }
  Begun begin_write(std::optional<TierId> from, TierId to, const StateKey& state, Tick now);
  // Begin to write entries of the tier above to a tier filled ahead; they stay above.
  void begin_ahead(TierId to, Tick now);
  bool make_room(TierId tier, std::int64_t pages, std::int64_t slots, Tick now);
  // Begin to write a victim to the next tier. Returns false if it is not worth the cost.
  bool demote(TierId tier, const EvictionItem& item, Tick now);
  bool is_worth_writing(TierId to, TierId from, const EvictionItem& item) const;
  // Return true if a deeper state, present or on its way in one of them, has superseded it.
  bool is_served_deeper(TierId to, TierId from, const StateKey& state) const;
  void drop(TierId tier, const EvictionItem& item, Tick now);
  // Return true if only this tier holds the item.
  bool is_last_place(TierId tier, const EvictionItem& item) const;
  void settle(const WriteInFlight& write, bool is_good, Tick now);
  // Drop the write's reservations; the ids are the caller's.
  std::vector<TierIds> cancel(const WriteInFlight& write);
  // Return the node and its depth at which a run of these tokens is to begin.
  Position stands_to(NodeId root, Tokens tokens);
  void abandon(WriteInFlight& write);
  void end_unstarted(TransferId id, Tick now);
  WriteInFlight* write_of(TierId to, const StateKey& state);
  void let_go(const LoadInFlight& load);

  const CacheConfig& config_;
  RadixTree& tree_;
  EventJournal& journal_;
  const LifeRelay& lives_;
  std::vector<std::unique_ptr<LowerTier>> tiers_;
  std::vector<WriteBudget> budgets_;
  std::vector<TierCounts> counts_;
  WriteQueue queue_;
  std::vector<WriteQueue> ahead_;  // by the tier to be written to
  std::deque<TierWrite> begun_;    // and not given to anybody yet
  std::map<TransferId, Transfer> transfers_;
  std::int64_t next_transfer_ = 1;
  std::int64_t lost_ = 0;

  friend class TierCheck;
};

}  // namespace tasuki::cache
