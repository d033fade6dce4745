#include "policy/marconi_policy.h"

#include <algorithm>
#include <limits>
#include <vector>

namespace tasuki::cache {

namespace {

StateKey key_of(const EvictionItem& item) { return {item.node, item.tail}; }

struct Candidate {
  const EvictionItem* item;
  double recency;
  double efficiency;
};

// Scales values of one kind to 0..1.
class Span {
 public:
  void include(double value) {
    least_ = std::min(least_, value);
    most_ = std::max(most_, value);
  }
  double share(double value) const {
    return most_ > least_ ? (value - least_) / (most_ - least_) : 0;
  }

 private:
  double least_ = std::numeric_limits<double>::infinity();
  double most_ = -std::numeric_limits<double>::infinity();
};

}  // namespace

void MarconiPolicy::add(const EvictionItem& item, const Worth& worth) {
  if (item.kind == EvictionKind::kLeafPages) {
    worthless_.add(item);
  } else {
    states_.emplace(item, worth);
    Use& use = uses_[key_of(item)];
    if (use.tick != item.last_use) use = {item.last_use, requests_};
  }
}

void MarconiPolicy::remove(const EvictionItem& item) {
  if (item.kind == EvictionKind::kLeafPages) {
    worthless_.remove(item);
  } else {
    states_.erase(item);
  }
}

bool MarconiPolicy::contains(const EvictionItem& item) const {
  return item.kind == EvictionKind::kLeafPages ? worthless_.contains(item) : states_.contains(item);
}

std::int64_t MarconiPolicy::size() const {
  return worthless_.size() + static_cast<std::int64_t>(states_.size());
}

std::optional<EvictionItem> MarconiPolicy::victim() const {
  if (const auto oldest = worthless_.victim()) return oldest;
  std::vector<Candidate> candidates;
  Span recencies;
  Span efficiencies;
  const auto consider = [&](const EvictionItem& item, const Worth& worth) {
    const std::int64_t age = requests_ - uses_.at(key_of(item)).request + 1;
    const double recency = 1 / static_cast<double>(age);
    const double efficiency = worth.gain / static_cast<double>(worth.pages);
    candidates.push_back({&item, recency, efficiency});
    recencies.include(recency);
    efficiencies.include(efficiency);
  };
  for (const auto& [item, worth] : states_) {
    if (worth.paths_below <= 1) consider(item, worth);
  }
  // If every state is a fork, the paper names no victim, but a request waits for room.
  if (candidates.empty()) {
    for (const auto& [item, worth] : states_) consider(item, worth);
  }
  if (candidates.empty()) return std::nullopt;
  const auto least = std::ranges::min_element(candidates, {}, [&](const Candidate& each) {
    return recencies.share(each.recency) + alpha_ * efficiencies.share(each.efficiency);
  });
  return *least->item;
}

}  // namespace tasuki::cache
