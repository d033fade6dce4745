#include "events/eviction_log.h"

#include <algorithm>

namespace tasuki::cache {

void EvictionLog::add(const EvictionItem& item, Eviction eviction) {
  eviction.sequence = ++last_;
  const StateKey key{item.node, item.tail};
  if (item.kind != EvictionKind::kLeafPages) takers_[key] = last_;
  entries_.push_back({eviction, key, pages_});
  pages_ += eviction.pages;
  if (entries_.size() <= kRemembered) return;
  const Entry& oldest = entries_.front();
  const auto taker = takers_.find(oldest.key);
  if (taker != takers_.end() && taker->second == oldest.eviction.sequence) takers_.erase(taker);
  entries_.pop_front();
}

std::optional<EvictedCheckpoint> EvictionLog::find(const StateKey& key) const {
  const auto taker = takers_.find(key);
  if (taker == takers_.end()) return std::nullopt;
  const auto age = static_cast<std::size_t>(last_ - taker->second);
  const Entry& entry = entries_[entries_.size() - 1 - age];
  return EvictedCheckpoint{entry.eviction.sequence, entry.eviction.boundary,
                           pages_ - entry.pages_before};
}

std::vector<Eviction> EvictionLog::drain() {
  const auto fresh = std::min(entries_.size(), static_cast<std::size_t>(last_ - drained_));
  drained_ = last_;
  std::vector<Eviction> out;
  out.reserve(fresh);
  std::for_each(entries_.end() - static_cast<std::ptrdiff_t>(fresh), entries_.end(),
                [&](const Entry& entry) { out.push_back(entry.eviction); });
  return out;
}

}  // namespace tasuki::cache
