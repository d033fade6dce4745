#include "events/eviction_log.h"

#include <algorithm>

namespace tasuki::cache {

void EvictionLog::add(const EvictionItem& item, Eviction eviction) {
  eviction.sequence = ++last_;
  const StateKey key{item.node, item.tail};
  const Entry entry{eviction, key, pages_};
  if (entries_.size() < kRemembered) {
    entries_.push_back(entry);
  } else {
    Entry& oldest = entries_[place_of(last_)];
    forget(oldest);
    oldest = entry;
  }
  if (item.kind != EvictionKind::kLeafPages) takers_[key] = last_;
  pages_ += eviction.pages;
}

void EvictionLog::forget(const Entry& entry) {
  if (entry.eviction.kind == EvictionKind::kLeafPages) return;
  const auto taker = takers_.find(entry.key);
  if (taker->second == entry.eviction.sequence) takers_.erase(taker);
}

std::optional<EvictedCheckpoint> EvictionLog::find(const StateKey& key) const {
  const auto taker = takers_.find(key);
  if (taker == takers_.end()) return std::nullopt;
  const Entry& entry = entries_[place_of(taker->second)];
  return EvictedCheckpoint{entry.eviction.sequence, entry.eviction.boundary,
                           pages_ - entry.pages_before};
}

std::vector<Eviction> EvictionLog::drain() {
  const auto remembered = static_cast<std::int64_t>(entries_.size());
  const std::int64_t first = std::max(drained_, last_ - remembered) + 1;
  drained_ = last_;
  std::vector<Eviction> out;
  out.reserve(static_cast<std::size_t>(last_ - first + 1));
  for (std::int64_t sequence = first; sequence <= last_; ++sequence) {
    out.push_back(entries_[place_of(sequence)].eviction);
  }
  return out;
}

}  // namespace tasuki::cache
