// One tier below the arena: its ids, its copies, and its candidates for eviction.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "alloc/slab_allocator.h"
#include "core/cache_config.h"
#include "policy/eviction_policy.h"
#include "tiers/copy_table.h"
#include "tiers/tier_worth.h"
#include "tree/radix_tree.h"

namespace tasuki::cache {

// Free ids of a tier, taken for one holder.
struct TierIds {
  std::vector<PageId> pages{};
  std::optional<SlotId> slot{};
};

// Owns the tier's allocator, copies and policy, and marks the usable ones in the tree's nodes. Ids
// under a copy are the tree's, under a reserved one working. Does not know other tiers, nor
// transfers. No page moves to empty a slab: a slot's slab takes a slot again, and a page slab is
// free when all its pages went.
//
// Invariants: a run with a copy has a copy above it, or a root; a state has one of its run's. A
// copy is listed exactly if it could be dropped alone. Such a copy is a present state without a
// reading load. Or it is a present run without readers, states, and copies right below.
class LowerTier {
 public:
  // REQUIRES: all of them outlive it.
  LowerTier(const CacheConfig& config, TierId tier, std::unique_ptr<EvictionPolicy> policy,
            RadixTree& tree);
  LowerTier(const LowerTier&) = delete;
  LowerTier& operator=(const LowerTier&) = delete;

  TierId id() const { return id_; }
  const TierConfig& config() const { return config_.tiers[raw(id_)]; }
  const CopyTable& copies() const { return copies_; }
  const SlabAllocator& allocator() const { return allocator_; }
  EvictionPolicy& policy() { return *policy_; }
  const EvictionPolicy& policy() const { return *policy_; }
  std::optional<EvictionItem> run_item(NodeId id) const;
  std::optional<EvictionItem> state_item(const StateKey& key) const;

  bool fits(std::int64_t pages, std::int64_t slots) const { return allocator_.fits(pages, slots); }
  // Return true if the empty tier could hold this much.
  bool could_hold(std::int64_t pages, std::int64_t slots) const;
  std::optional<EvictionItem> victim() const { return policy_->victim(); }

  // Reserve ids for copies before their write: the state first, then the runs of its path lacking
  // in the tier, from the root down. REQUIRES: it fits.
  void reserve_run(NodeId id);
  void reserve_state(const StateKey& key, const StateCopy& like);
  // Reserve exactly these ids, for copies kept over a restart. REQUIRES: claimed.
  void reserve_these(NodeId id, std::vector<PageId> pages);
  void reserve_these(const StateKey& key, StateCopy copy);
  // Claim all of the ids. Return false, and claim none, if one has an owner.
  bool claim(const TierIds& ids);
  // REQUIRES: they are reserved, and for a run the one above is present.
  void settle_run(NodeId id, Tick now);
  void settle_state(const StateKey& key, Tick now);
  // Drop the copies; the caller gives the ids back. REQUIRES: they are reserved, and nothing below
  // is.
  TierIds cancel_run(NodeId id);
  TierIds cancel_state(const StateKey& key);
  void give_back(const TierIds& ids);

  // Drop a listed copy. passes_on: no other place holds the state.
  void drop(const EvictionItem& item, bool passes_on, Tick now);
  // Keep a copy usable, and unlisted, until stay().
  void leave(const StateKey& key);
  void stay(const StateKey& key);

  // Keep a run and all above it, or a state, during a read.
  void hold_run(NodeId id) { change_run(id, 1); }
  void let_run(NodeId id) { change_run(id, -1); }
  void hold_state(const StateKey& key) { change_state(key, 1); }
  void let_state(const StateKey& key) { change_state(key, -1); }

  void touch(const StateKey& key, Tick now);
  void put_on_probation(const StateKey& key);
  // Split the copy of a node split in the tree: `upper` is new. Returns the deeper part if its copy
  // is reserved.
  std::optional<NodeId> split(NodeId upper);

 private:
  void list_run(NodeId id);
  void withdraw_run(NodeId id);
  void list_state(const StateKey& key);
  void withdraw_state(const StateKey& key);
  void change_run(NodeId id, std::int32_t readers);
  void change_state(const StateKey& key, std::int32_t readers);
  void drop_run(NodeId id, Tick now);
  void drop_state(const StateKey& key, Tick now);
  void free_run(NodeId id);
  TierIds take_out_state(const StateKey& key);
  // List the nearest states below again after a change of a state here altered their worth.
  void weigh_below(NodeId top);
  void mark_run(NodeId id, bool holds, Tick now);
  void mark_state(const StateKey& key, const StateCopy* copy, Tick now);

  const CacheConfig& config_;
  TierId id_;
  RadixTree& tree_;
  SlabAllocator allocator_;
  CopyTable copies_;
  std::unique_ptr<EvictionPolicy> policy_;
  TierWorth worth_;
};

}  // namespace tasuki::cache
