#include "cpp_cache/lru_policy.h"

#include <tuple>

namespace tasuki::cache {

bool LruPolicy::OlderFirst::operator()(const EvictionItem& left, const EvictionItem& right) const {
  return std::tuple(!left.probationary, left.last_use, left.node, left.kind, left.tail) <
         std::tuple(!right.probationary, right.last_use, right.node, right.kind, right.tail);
}

bool LruPolicy::contains(const EvictionItem& item) const {
  return item.kind == EvictionKind::kLeafPages ? worthless_.contains(item) : states_.contains(item);
}

std::optional<EvictionItem> LruPolicy::victim() const {
  if (!worthless_.empty()) return *worthless_.begin();
  if (!states_.empty()) return *states_.begin();
  return std::nullopt;
}

std::int64_t LruPolicy::size() const {
  return static_cast<std::int64_t>(worthless_.size() + states_.size());
}

}  // namespace tasuki::cache
