// Evicts the state of least worth: chance of use x prefill saved / bytes freed.
#pragma once

#include <cstdint>
#include <map>
#include <queue>
#include <set>
#include <utility>
#include <vector>

#include "policy/eviction_policy.h"
#include "policy/lru_policy.h"
#include "policy/reuse_model.h"

namespace tasuki::cache {

// Owns the features of every state, evicted ones included, and the model learnt from their lives.
// States of one class and age share one index and are ordered by gain per byte. A victim is the
// least of the heads of all classes and ages, at a cost independent of the tree's size.
// Deterministic: time is injected, ties are broken by key.
class ValuePolicy final : public EvictionPolicy {
 public:
  ValuePolicy() : indices_(&model_) {}
  // Use the model of another policy with more of the same traffic. REQUIRES: it outlives this.
  explicit ValuePolicy(const ReuseModel& teacher) : indices_(&teacher) {}
  ValuePolicy(const ValuePolicy&) = delete;
  ValuePolicy& operator=(const ValuePolicy&) = delete;

  void add(const EvictionItem& item, const Worth& worth = {}) override;
  void remove(const EvictionItem& item) override;
  bool contains(const EvictionItem& item) const override { return recency_.contains(item); }
  std::optional<EvictionItem> victim() const override;
  std::optional<double> score(const EvictionItem& item) const override;
  std::int64_t size() const override { return recency_.size(); }

  bool learns() const override { return true; }
  const ReuseModel* model() const override { return &model_; }
  void advance(std::int64_t now_ms) override;
  void born(const StateKey& key, const Birth& birth) override;
  void used(const StateKey& key) override;
  void superseded(const StateKey& key) override;
  void ended(const StateKey& key) override;
  void hinted(const StateKey& key, TurnHint hint) override;
  void inherited(const StateKey& dropped, const StateKey& heir) override;
  void forgotten(const StateKey& key) override;
  bool is_superseded(const StateKey& key) const override;
  std::int64_t turns(const StateKey& key) const override;
  StateKey waiting_for(const StateKey& key) const override;

  // Keep the learnt model; the next victim follows the other order.
  void follow(PolicyKind kind) override;

 private:
  struct Life {
    ReuseClass traits;
    std::int64_t since_ms;    // last use, or birth
    std::int64_t entered_ms;  // into its bucket
    std::int32_t group;
    std::int32_t bucket;
    std::uint64_t version;  // a due date of another one is stale
    std::optional<EvictionItem> listed{};
    double density = 0;  // gain a page freed
    bool ended = false;  // worth nothing until it is used after all
  };
  using Lives = std::map<StateKey, Life>;
  struct Due {
    std::int64_t at_ms;
    StateKey key;
    std::uint64_t version;
    auto operator<=>(const Due&) const = default;
  };
  using Heads = std::set<std::pair<double, StateKey>>;

  Life& life_of(const StateKey& key, const Birth& birth);
  void start_risk(const StateKey& key, Life& life);
  void end_risk(Life& life);
  void list(const StateKey& key, const Life& life);
  void withdraw(const StateKey& key, const Life& life);

  bool by_recency_ = false;
  ReuseModel model_;
  const ReuseModel* indices_;  // model for choosing victims: model_ or a teacher's
  LruPolicy recency_;          // of every item, so worthless KV goes by age
  std::int64_t worthless_ = 0;
  Lives lives_;
  std::map<StateKey, StateKey> heirs_;  // for states without a life of their own
  std::map<std::pair<std::int32_t, std::int32_t>, Heads> shelves_;  // by (group, bucket)
  std::priority_queue<Due, std::vector<Due>, std::greater<>> due_;
  std::int64_t now_ms_ = 0;
  std::uint64_t next_version_ = 1;
  std::int64_t events_ = 0;  // since the model last learnt
};

}  // namespace tasuki::cache
