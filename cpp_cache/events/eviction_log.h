// Log of the last evictions: victim, beneficiary, and the eviction of a given state.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "core/ids.h"
#include "core/match.h"
#include "policy/eviction_item.h"

namespace tasuki::cache {

// One decision of the policy.
struct Eviction {
  std::int64_t sequence;  // 1, 2, 3, ... over the tree's life
  EvictionKind kind;
  std::optional<CheckpointKind> checkpoint_kind;  // set for a state
  std::int64_t boundary;                          // tokens from the root to its end
  std::int64_t pages;                             // freed pages; for a state, the pages of its slot
  std::optional<double> score;                    // least score, if the policy weighs
  std::optional<AllocationId> allocation;         // caller that needed the room; nullopt: a flush
};

// Owns a bounded memory of decisions. Knows no tokens and no page ids; decides nothing. Invariants:
// sequences have no gap. Each decision is at its sequence, modulo kRemembered, until a later one
// takes the place. takers_ names only remembered decisions.
class EvictionLog {
 public:
  static constexpr std::size_t kRemembered = 4096;

  void add(const EvictionItem& item, Eviction eviction);
  // Return the last eviction of the state; nullopt if forgotten.
  std::optional<EvictedCheckpoint> find(const StateKey& key) const;
  // Decisions over the tree's life.
  std::int64_t count() const { return last_; }
  // Return the remembered decisions since the last call, oldest first.
  std::vector<Eviction> drain();

 private:
  struct Entry {
    Eviction eviction;
    StateKey key;
    std::int64_t pages_before;  // freed by all earlier ones
  };

  static std::size_t place_of(std::int64_t sequence) {
    return static_cast<std::size_t>(sequence - 1) % kRemembered;
  }
  void forget(const Entry& entry);

  std::vector<Entry> entries_;
  std::map<StateKey, std::int64_t> takers_;  // evictions of states, by sequence
  std::int64_t last_ = 0;
  std::int64_t drained_ = 0;
  std::int64_t pages_ = 0;  // freed by all
};

}  // namespace tasuki::cache
