#include "policy/lru_policy.h"

namespace tasuki::cache {

namespace {

constexpr Tick kNotOnProbation = Tick{1} << 63;

}  // namespace

LruPolicy::Key LruPolicy::key_of(const EvictionItem& item) {
  return {item.last_use | (item.probationary ? 0 : kNotOnProbation), item.node, item.kind,
          item.tail.value_or(TailId{})};
}

EvictionItem LruPolicy::item_of(const Key& key) {
  const auto tail = key.tail == TailId{} ? std::nullopt : std::optional(key.tail);
  return {key.kind, key.last_use & ~kNotOnProbation, key.node, tail,
          (key.last_use & kNotOnProbation) == 0};
}

void LruPolicy::remove(const EvictionItem& item) {
  Order& order = order_of(item);
  const Key key = key_of(item);
  // Nearly always the victim: no search.
  const auto at = !order.empty() && *order.begin() == key ? order.begin() : order.find(key);
  if (at != order.end()) order.erase(at);
}

bool LruPolicy::contains(const EvictionItem& item) const {
  const Order& order = item.kind == EvictionKind::kLeafPages ? worthless_ : states_;
  return order.contains(key_of(item));
}

std::optional<EvictionItem> LruPolicy::victim() const {
  if (!worthless_.empty()) return item_of(*worthless_.begin());
  if (!states_.empty()) return item_of(*states_.begin());
  return std::nullopt;
}

std::int64_t LruPolicy::size() const {
  return static_cast<std::int64_t>(worthless_.size() + states_.size());
}

}  // namespace tasuki::cache
