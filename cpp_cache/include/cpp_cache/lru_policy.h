// Least recently used, worthless KV first.
#pragma once

#include <set>

#include "cpp_cache/eviction.h"

namespace tasuki::cache {

// Order: KV below the last state of its path, then states and tails on probation, then the others,
// each by last use, ties by id. O(log n) an operation.
class LruPolicy final : public EvictionPolicy {
 public:
  void add(const EvictionItem& item, const Worth& /*worth*/ = {}) override {
    order_of(item).insert(item);
  }
  void remove(const EvictionItem& item) override { order_of(item).erase(item); }
  bool contains(const EvictionItem& item) const override;
  std::optional<EvictionItem> victim() const override;
  std::int64_t size() const override;

 private:
  struct OlderFirst {
    bool operator()(const EvictionItem& left, const EvictionItem& right) const;
  };
  using Order = std::set<EvictionItem, OlderFirst>;

  Order& order_of(const EvictionItem& item) {
    return item.kind == EvictionKind::kLeafPages ? worthless_ : states_;
  }

  Order worthless_;
  Order states_;
};

}  // namespace tasuki::cache
