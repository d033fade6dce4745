// Interface of policies to choose victims.
#pragma once

#include <cstdint>
#include <optional>

#include "core/cache_config.h"
#include "policy/eviction_item.h"

namespace tasuki::cache {

class ReuseModel;

// Chooses victims among the added items. Knows no page or slot ids and no tokens. The tree adds
// every unprotected item, and removes an item when it is pinned. For a learning policy it also
// reports the life of every state, evicted ones included.
class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;
  virtual void add(const EvictionItem& item, const Worth& worth = {}) = 0;
  // REQUIRES: item was added and not removed since.
  virtual void remove(const EvictionItem& item) = 0;
  virtual bool contains(const EvictionItem& item) const = 0;
  virtual std::optional<EvictionItem> victim() const = 0;
  // Return a listed state's worth per page; nullopt from a policy with an order only.
  virtual std::optional<double> score(const EvictionItem& /*item*/) const { return std::nullopt; }
  virtual std::int64_t size() const = 0;

  // Return true if the calls below and the worth of items matter to it.
  virtual bool learns() const { return false; }
  // Return its model of reuse; nullptr without one.
  virtual const ReuseModel* model() const { return nullptr; }
  // Switch to another policy, if it can act as several.
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
  // The path of a dropped state now ends at `heir`, and `heir` waits for the same request.
  virtual void inherited(const StateKey& /*dropped*/, const StateKey& /*heir*/) {}
  // Return the state used instead of a dropped one after inherited(); else the key itself.
  virtual StateKey waiting_for(const StateKey& key) const { return key; }
  virtual void forgotten(const StateKey& /*key*/) {}
  // Return true if the same path got a deeper state since.
  virtual bool is_superseded(const StateKey& /*key*/) const { return false; }
  // Return the number of requests in its conversation so far; 0 if unknown.
  virtual std::int64_t turns(const StateKey& /*key*/) const { return 0; }
};

}  // namespace tasuki::cache
