// The tiers below the arena, and what moves between them.
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

// A load of which every acknowledgement has come.
struct EndedLoad {
  AllocationId allocation;
  bool landed;
};

// Owns the tiers, what waits to be written and what is in flight. Holds ids and moves no byte: who
// copies is given what to copy, and acknowledges it. Every state that the arena gets is written to
// the first tier, with the runs of its path that the tier lacks, all or nothing. A state that a
// tier would drop is written to the next one before, where it is worth that and the budget allows.
// Invariants: those of cache/prefix_cache.h from 7 on. Thread rule: single-threaded, as
// PrefixCache.
class Tiers {
 public:
  // REQUIRES: all of them outlive it; config names a tier at least.
  Tiers(const CacheConfig& config, RadixTree& tree, EventJournal& journal, LifeRelay& lives);

  // Ask.
  const std::vector<std::unique_ptr<LowerTier>>& all() const { return tiers_; }
  TierCounts counts(TierId tier) const;
  std::int64_t waiting_writes() const { return queue_.size(); }
  // Runs and states that no tier holds any more.
  std::int64_t lost() const { return lost_; }
  // Of a write that is under way. Throws InvalidArgument where there is none, or it was abandoned.
  WriteLabel label_of(TransferId write) const;
  bool is_read() const;
  bool holds_any() const;

  // What happens in the arena. Called after the tree changed, `leaving` and `moving` before.
  void state_stored(const StateKey& state);
  void split(NodeId upper);
  void leaving(const EvictionItem& item);
  void moving(NodeId home);
  void used(const StateKey& state, Tick now);
  void put_on_probation(const StateKey& state);
  // Ignores a state that is gone.
  void expect_no_use(const StateKey& state);
  void advance(std::int64_t now_ms);

  // The next copy to be made downwards, begun by this call. nullopt: none waits, or there is no
  // room yet.
  std::optional<TierWrite> next_write(Tick now);
  // Of a state below the arena, and of the KV behind `arena_tokens`, from the nearest place each.
  // targets: pages of the allocation, by logical page. REQUIRES: a tier holds the state.
  TierLoad begin_load(const StateKey& state, std::int64_t arena_tokens, AllocationId allocation,
                      std::span<const PageId> targets, SlotId target, Tick now);
  // Its allocation is gone, or wants it no more: acknowledgements still come.
  void abandon_load(TransferId id);
  // One of as many as there are ranks; all of them are awaited, whatever they say. Returns a load
  // that this was the last of. Throws InvalidArgument where the transfer has ended or never began.
  std::optional<EndedLoad> acknowledge(TransferId id, bool is_good, Tick now);
  // The tier has it, from before a restart. False, and nothing has changed, where one of its ids is
  // another's, or the tier has the state by now. REQUIRES: a page for each of its tokens' pages.
  bool restore(TierId tier, const KeptState& kept, Tick now);
  // The tier has it, since somebody else wrote it there: ids of its own are given to what it
  // lacked. nullopt, and nothing of use has changed: there is no room, the state stands somewhere
  // already, or KV of its path is being written. REQUIRES: tokens.
  std::optional<AdoptedState> adopt(TierId tier, std::string_view salt, Tokens tokens,
                                    CheckpointKind kind, Tick now);
  // Drops all that nobody reads, and what waits.
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
  // Begins to write, to a tier that is filled ahead, what came to the one above and stays there.
  void begin_ahead(TierId to, Tick now);
  bool make_room(TierId tier, std::int64_t pages, std::int64_t slots, Tick now);
  // Begins to write a state that would be dropped to the next tier; false: it is not worth that.
  bool demote(TierId tier, const EvictionItem& item, Tick now);
  bool is_worth_writing(TierId to, TierId from, const EvictionItem& item) const;
  // Whether a deeper state, which one of them has or is to get, has superseded it.
  bool is_served_deeper(TierId to, TierId from, const StateKey& state) const;
  void drop(TierId tier, const EvictionItem& item, Tick now);
  // Whether only this tier holds the item.
  bool is_last_place(TierId tier, const EvictionItem& item) const;
  void settle(const WriteInFlight& write, bool is_good, Tick now);
  // Reserves nothing for it any more; the ids are the caller's.
  std::vector<TierIds> cancel(const WriteInFlight& write);
  // The node at whose end, and the tokens behind which, a run of these is to begin.
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
