// The lives of states, relayed to the policies of the tiers below.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "policy/eviction_policy.h"

namespace tasuki::cache {

// Acts as the arena's policy, and owns it. Relays the lives of states, and time, to the other
// policies; each of them lists items of its own. So there is one reuse model and one policy per
// tier.
class LifeRelay final : public EvictionPolicy {
 public:
  explicit LifeRelay(std::unique_ptr<EvictionPolicy> arena) : arena_(std::move(arena)) {}
  // REQUIRES: it outlives every later call.
  void relay_to(EvictionPolicy& below) { below_.push_back(&below); }

  void add(const EvictionItem& item, const Worth& worth = {}) override { arena_->add(item, worth); }
  void remove(const EvictionItem& item) override { arena_->remove(item); }
  bool contains(const EvictionItem& item) const override { return arena_->contains(item); }
  std::optional<EvictionItem> victim() const override { return arena_->victim(); }
  std::optional<double> score(const EvictionItem& item) const override {
    return arena_->score(item);
  }
  std::int64_t size() const override { return arena_->size(); }
  bool learns() const override { return arena_->learns(); }
  const ReuseModel* model() const override { return arena_->model(); }
  StateKey waiting_for(const StateKey& key) const override { return arena_->waiting_for(key); }
  bool is_superseded(const StateKey& key) const override { return arena_->is_superseded(key); }
  std::int64_t turns(const StateKey& key) const override { return arena_->turns(key); }

  void follow(PolicyKind kind) override { relay(&EvictionPolicy::follow, kind); }
  void advance(std::int64_t now_ms) override { relay(&EvictionPolicy::advance, now_ms); }
  void born(const StateKey& key, const Birth& birth) override {
    relay(&EvictionPolicy::born, key, birth);
  }
  void used(const StateKey& key) override { relay(&EvictionPolicy::used, key); }
  void superseded(const StateKey& key) override { relay(&EvictionPolicy::superseded, key); }
  void ended(const StateKey& key) override { relay(&EvictionPolicy::ended, key); }
  void hinted(const StateKey& key, TurnHint hint) override {
    relay(&EvictionPolicy::hinted, key, hint);
  }
  void inherited(const StateKey& dropped, const StateKey& heir) override {
    relay(&EvictionPolicy::inherited, dropped, heir);
  }
  void forgotten(const StateKey& key) override { relay(&EvictionPolicy::forgotten, key); }

 private:
  template <typename Call, typename... What>
  void relay(Call call, const What&... what) {
    ((*arena_).*call)(what...);
    for (EvictionPolicy* const policy : below_) (policy->*call)(what...);
  }

  std::unique_ptr<EvictionPolicy> arena_;
  std::vector<EvictionPolicy*> below_;
};

}  // namespace tasuki::cache
