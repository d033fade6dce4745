// Marconi's eviction, for comparison: recency plus saved prefill a byte (Pan et al., MLSys 2025).
#pragma once

#include <map>
#include <utility>

#include "policy/eviction_policy.h"
#include "policy/lru_policy.h"

namespace tasuki::cache {

// score = 1 / age + alpha * gain a page, both scaled to 0..1 over the candidates; the least goes.
// Candidates are states with at most one path below them. Written from the paper; replays and
// benchmarks compare with it, no engine offers it: a victim costs a look at every state.
class MarconiPolicy final : public EvictionPolicy {
 public:
  explicit MarconiPolicy(double alpha) : alpha_(alpha) {}

  void add(const EvictionItem& item, const Worth& worth = {}) override;
  void remove(const EvictionItem& item) override;
  bool contains(const EvictionItem& item) const override;
  std::optional<EvictionItem> victim() const override;
  std::int64_t size() const override;
  bool learns() const override { return true; }
  void advance(std::int64_t /*now_ms*/) override { ++requests_; }
  void forgotten(const StateKey& key) override { uses_.erase(key); }

 private:
  // The paper's ages count requests.
  struct Use {
    Tick tick;
    std::int64_t request;
  };

  double alpha_;
  LruPolicy worthless_;
  std::map<EvictionItem, Worth> states_;
  std::map<StateKey, Use> uses_;
  std::int64_t requests_ = 0;
};

}  // namespace tasuki::cache
