// The policy that chooses victims.
#pragma once

#include <cstdint>
#include <optional>

#include "core/cache_config.h"
#include "policy/eviction_item.h"

namespace tasuki::cache {

class ReuseModel;

// Chooses victims among the items that were added. Knows no ids of pages or slots and no tokens.
// The tree adds every item that nothing protects, and removes an item the moment it is pinned. For
// a policy that learns it also reports the life of every state, evicted ones included.
class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;
  virtual void add(const EvictionItem& item, const Worth& worth = {}) = 0;
  // REQUIRES: item was added and not removed since.
  virtual void remove(const EvictionItem& item) = 0;
  virtual bool contains(const EvictionItem& item) const = 0;
  virtual std::optional<EvictionItem> victim() const = 0;
  // What it holds a listed state to be worth, a page; nullopt of a policy that only orders.
  virtual std::optional<double> score(const EvictionItem& /*item*/) const { return std::nullopt; }
  virtual std::int64_t size() const = 0;

  // Whether the calls below and the worth of items matter to it.
  virtual bool learns() const { return false; }
  // What it learnt of reuse; nullptr of one that learns nothing of it.
  virtual const ReuseModel* model() const { return nullptr; }
  // For one that can act as several.
  virtual void follow(PolicyKind /*kind*/) {}
  // Time is injected and never runs back.
  virtual void advance(std::int64_t /*now_ms*/) {}
  virtual void born(const StateKey& /*key*/, const Birth& /*birth*/) {}
  // A request resumed from it, or would have if it were still there.
  virtual void used(const StateKey& /*key*/) {}
  // The same path got a deeper state.
  virtual void superseded(const StateKey& /*key*/) {}
  // Its conversation was closed: no use is expected.
  virtual void ended(const StateKey& /*key*/) {}
  virtual void hinted(const StateKey& /*key*/, TurnHint /*hint*/) {}
  // The path of a dropped state now ends at `heir`, which waits for the same request.
  virtual void inherited(const StateKey& /*dropped*/, const StateKey& /*heir*/) {}
  // The state that stands in for a dropped one after inherited(); else the key itself.
  virtual StateKey waiting_for(const StateKey& key) const { return key; }
  virtual void forgotten(const StateKey& /*key*/) {}
  // Whether the same path got a deeper state since.
  virtual bool is_superseded(const StateKey& /*key*/) const { return false; }
  // Requests in its conversation so far; 0 where unknown.
  virtual std::int64_t turns(const StateKey& /*key*/) const { return 0; }
};

}  // namespace tasuki::cache
