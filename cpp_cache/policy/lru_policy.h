// Least recently used, worthless KV first.
#pragma once

#include <memory_resource>
#include <set>

#include "policy/eviction_policy.h"

namespace tasuki::cache {

// Order: KV below the last state of its path, then states and tails on probation, then the others,
// each by last use, ties by id. O(log n) an operation.
class LruPolicy final : public EvictionPolicy {
 public:
  void add(const EvictionItem& item, const Worth& /*worth*/ = {}) override {
    order_of(item).insert(key_of(item));
  }
  void remove(const EvictionItem& item) override;
  bool contains(const EvictionItem& item) const override;
  std::optional<EvictionItem> victim() const override;
  std::int64_t size() const override;

 private:
  // An item in 24 bytes, ordered by its members.
  struct Key {
    Tick last_use;  // the highest bit: not on probation
    NodeId node;
    EvictionKind kind;
    TailId tail;  // TailId{} for none: real ones start at 1

    auto operator<=>(const Key&) const = default;
  };
  using Order = std::pmr::set<Key>;

  static Key key_of(const EvictionItem& item);
  static EvictionItem item_of(const Key& key);

  Order& order_of(const EvictionItem& item) {
    return item.kind == EvictionKind::kLeafPages ? worthless_ : states_;
  }

  // Own pool, because entries come and go all the time; its memory is kept until the end.
  std::pmr::unsynchronized_pool_resource pool_;
  Order worthless_{&pool_};
  Order states_{&pool_};
};

}  // namespace tasuki::cache
