#include "policy/value_policy.h"

#include <algorithm>
#include <functional>

namespace tasuki::cache {

namespace {

constexpr std::int64_t kEventsToLearn = 128;

StateKey key_of(const EvictionItem& item) { return {item.node, item.tail}; }

}  // namespace

ValuePolicy::Life& ValuePolicy::life_of(const StateKey& key, const Birth& birth) {
  const auto found = lives_.find(key);
  if (found != lives_.end()) return found->second;
  const ReuseClass traits{birth.kind, birth.hint, false, birth.turns, birth.boundary};
  Life& life = lives_.emplace(key, Life{traits, now_ms_, now_ms_, 0, 0, 0}).first->second;
  start_risk(key, life);
  return life;
}

void ValuePolicy::start_risk(const StateKey& key, Life& life) {
  life.group = life.traits.index();
  life.bucket = ReuseModel::bucket_of(now_ms_ - life.since_ms);
  life.entered_ms = now_ms_;
  life.version = next_version_++;
  model_.enter(life.group, life.bucket, now_ms_);
  if (life.bucket + 1 < ReuseModel::kBuckets) {
    due_.push({life.since_ms + ReuseModel::end_of(life.bucket), key, life.version});
  }
  if (life.listed) list(key, life);
}

void ValuePolicy::end_risk(Life& life) {
  model_.leave(life.group, life.bucket, life.entered_ms, now_ms_);
}

void ValuePolicy::list(const StateKey& key, const Life& life) {
  shelves_[{life.group, life.bucket}].emplace(life.density, key);
}

void ValuePolicy::withdraw(const StateKey& key, const Life& life) {
  const auto shelf = shelves_.find({life.group, life.bucket});
  shelf->second.erase({life.density, key});
  if (shelf->second.empty()) shelves_.erase(shelf);
}

void ValuePolicy::add(const EvictionItem& item, const Worth& worth) {
  recency_.add(item);
  if (item.kind == EvictionKind::kLeafPages) {
    ++worthless_;
    return;
  }
  const StateKey key = key_of(item);
  Life& life = life_of(key, {});
  life.listed = item;
  life.density =
      life.ended ? 0 : worth.gain / static_cast<double>(std::max<std::int64_t>(worth.pages, 1));
  list(key, life);
}

void ValuePolicy::remove(const EvictionItem& item) {
  recency_.remove(item);
  if (item.kind == EvictionKind::kLeafPages) {
    --worthless_;
    return;
  }
  const StateKey key = key_of(item);
  Life& life = lives_.at(key);
  withdraw(key, life);
  life.listed.reset();
}

std::optional<EvictionItem> ValuePolicy::victim() const {
  if (by_recency_ || worthless_ > 0) return recency_.victim();
  const StateKey* least = nullptr;
  double score = 0;
  for (const auto& [shelf, heads] : shelves_) {
    const auto& [density, key] = *heads.begin();
    const double here = indices_->gittins(shelf.first, shelf.second) * density;
    if (least != nullptr && here >= score) continue;
    least = &key;
    score = here;
  }
  if (least == nullptr) return std::nullopt;
  return lives_.at(*least).listed;
}

std::optional<double> ValuePolicy::score(const EvictionItem& item) const {
  if (by_recency_) return std::nullopt;
  if (item.kind == EvictionKind::kLeafPages) return 0;
  const Life& life = lives_.at(key_of(item));
  return indices_->gittins(life.group, life.bucket) * life.density;
}

void ValuePolicy::advance(std::int64_t now_ms) {
  now_ms_ = std::max(now_ms_, now_ms);
  while (!due_.empty() && due_.top().at_ms <= now_ms_) {
    const Due due = due_.top();
    due_.pop();
    const auto found = lives_.find(due.key);
    if (found == lives_.end() || found->second.version != due.version) continue;
    Life& life = found->second;
    if (life.listed) withdraw(due.key, life);
    end_risk(life);
    start_risk(due.key, life);
  }
  if (events_ < kEventsToLearn || indices_ != &model_) return;
  events_ = 0;
  model_.learn(now_ms_);
}

void ValuePolicy::follow(PolicyKind kind) { by_recency_ = kind == PolicyKind::kLru; }

void ValuePolicy::born(const StateKey& key, const Birth& birth) {
  ++events_;
  heirs_.erase(key);
  const auto found = lives_.find(key);
  if (found == lives_.end()) {
    life_of(key, birth);
    return;
  }
  // A returned ghost keeps its kind, unless it proved to be a branch.
  if (birth.kind != CheckpointKind::kBranch) return;
  Life& life = found->second;
  if (life.listed) withdraw(key, life);
  end_risk(life);
  life.traits.kind = birth.kind;
  start_risk(key, life);
}

void ValuePolicy::used(const StateKey& key) {
  const auto found = lives_.find(key);
  if (found == lives_.end()) return;
  ++events_;
  Life& life = found->second;
  if (life.listed) withdraw(key, life);
  model_.reuse(life.group, life.bucket);
  end_risk(life);
  ++life.traits.turns;
  life.since_ms = now_ms_;
  life.ended = false;
  start_risk(key, life);
}

void ValuePolicy::ended(const StateKey& key) {
  const auto found = lives_.find(key);
  // Its place among the listed follows when the tree lists it again.
  if (found != lives_.end()) found->second.ended = true;
}

void ValuePolicy::superseded(const StateKey& key) {
  const auto found = lives_.find(key);
  if (found == lives_.end() || found->second.traits.kind == CheckpointKind::kBranch) return;
  Life& life = found->second;
  if (life.listed) withdraw(key, life);
  end_risk(life);
  life.traits.superseded = true;
  start_risk(key, life);
}

void ValuePolicy::hinted(const StateKey& key, TurnHint hint) {
  const auto found = lives_.find(key);
  if (found == lives_.end()) return;
  Life& life = found->second;
  if (life.listed) withdraw(key, life);
  end_risk(life);
  life.traits.hint = hint;
  start_risk(key, life);
}

void ValuePolicy::inherited(const StateKey& dropped, const StateKey& heir) {
  const auto from = lives_.find(dropped);
  const auto to = lives_.find(heir);
  if (from == lives_.end() || to == lives_.end()) return;
  Life& life = to->second;
  if (from->second.since_ms < life.since_ms) return;
  // It still waits for requests branching off; inheritance does not concern it.
  if (life.traits.kind == CheckpointKind::kInterior) return;
  if (life.listed) withdraw(heir, life);
  end_risk(life);
  const std::int64_t boundary = life.traits.boundary;
  life.traits = from->second.traits;
  life.traits.boundary = boundary;
  life.since_ms = from->second.since_ms;
  start_risk(heir, life);
  // One wait for one request is counted once.
  end_risk(from->second);
  lives_.erase(from);
  heirs_.insert_or_assign(dropped, heir);
}

StateKey ValuePolicy::waiting_for(const StateKey& key) const {
  StateKey waiting = key;
  for (auto next = heirs_.find(key); next != heirs_.end(); next = heirs_.find(waiting)) {
    waiting = next->second;
  }
  return waiting;
}

void ValuePolicy::forgotten(const StateKey& key) {
  heirs_.erase(key);
  const auto found = lives_.find(key);
  if (found == lives_.end()) return;
  end_risk(found->second);
  lives_.erase(found);
}

bool ValuePolicy::is_superseded(const StateKey& key) const {
  const auto found = lives_.find(key);
  return found != lives_.end() && found->second.traits.superseded;
}

std::int64_t ValuePolicy::turns(const StateKey& key) const {
  const auto found = lives_.find(key);
  if (found == lives_.end()) return 0;
  // A prefix shared by many conversations is no evidence about a single one.
  const ReuseClass& traits = found->second.traits;
  const bool is_shared = traits.kind == CheckpointKind::kBranch ||
                         traits.kind == CheckpointKind::kMark ||
                         traits.kind == CheckpointKind::kInterior;
  return is_shared ? 0 : traits.turns;
}

}  // namespace tasuki::cache
