// Items for eviction, with their worth. Plain values.
#pragma once

#include <cstdint>
#include <optional>

#include "core/checkpoint_kind.h"
#include "core/ids.h"

namespace tasuki::cache {

enum class EvictionKind : std::uint8_t {
  kLeafPages,   // KV of a node without state or children: it saves no prefill
  kCheckpoint,  // the state at a node's end; its KV stays
  kTail,        // a partial page and its state
};

struct EvictionItem {
  EvictionKind kind;
  Tick last_use;
  NodeId node;
  std::optional<TailId> tail;  // set for kTail
  bool probationary = false;   // another state nearby serves nearly as well, until this one is used

  auto operator<=>(const EvictionItem&) const = default;
};

// Loss and gain of evicting a state.
struct Worth {
  double gain = 0;               // saved over the nearest state above; prefill of one token is 1
  std::int64_t pages = 1;        // freed at once or made useless; a slot counts as its slab's pages
  std::int64_t paths_below = 0;  // for a node: number of paths that go on from it
};

// Facts about a state at its insertion.
struct Birth {
  CheckpointKind kind = CheckpointKind::kTurnEnd;
  TurnHint hint = TurnHint::kUnknown;
  std::int64_t boundary = 0;
  std::int64_t turns = 0;  // turns of the conversation before it
};

}  // namespace tasuki::cache
