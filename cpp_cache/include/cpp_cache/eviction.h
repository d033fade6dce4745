// What may be evicted, and the policy that chooses among it.
#pragma once

#include <cstdint>
#include <optional>

#include "cpp_cache/ids.h"

namespace tasuki::cache {

enum class EvictionKind : std::uint8_t {
  kLeafPages,   // KV of a node with no state, nothing below: worth nothing to a prefill
  kCheckpoint,  // the state at a node's end; its KV stays
  kTail,        // a partial page and its state
};

struct EvictionItem {
  EvictionKind kind;
  Tick last_use;
  NodeId node;
  std::optional<TailId> tail;  // of kTail

  auto operator<=>(const EvictionItem&) const = default;
};

// Chooses victims among the items it was told of. Knows no ids of pages or slots and no tokens.
// The tree tells it of every item that nothing protects, and withdraws an item the moment it is
// pinned.
class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;
  virtual void add(const EvictionItem& item) = 0;
  // REQUIRES: item was added and not removed since.
  virtual void remove(const EvictionItem& item) = 0;
  virtual bool contains(const EvictionItem& item) const = 0;
  virtual std::optional<EvictionItem> victim() const = 0;
  virtual std::int64_t size() const = 0;
};

}  // namespace tasuki::cache
