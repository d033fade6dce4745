// The cached part of a prompt, and the reasons for the rest. Plain values.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/checkpoint_kind.h"
#include "core/ids.h"

namespace tasuki::cache {

// Lost tokens by reason. usable_tokens + sum() == prompt_tokens.
struct MissReasons {
  std::int64_t fresh = 0;               // never seen, or forgotten ("new" is a C++ keyword)
  std::int64_t never_checkpointed = 0;  // KV exists, but no state ever did
  std::int64_t checkpoint_evicted = 0;  // KV exists, its state was evicted
  std::int64_t kv_evicted = 0;
  std::int64_t alignment = 0;  // exists, but is cut at a page's end or at prompt - 1
  std::int64_t in_flight = 0;  // a live allocation is computing these very tokens
  std::int64_t below = 0;      // a load from a tier would make these tokens usable

  MissReasons& operator-=(const MissReasons& other) {
    fresh -= other.fresh;
    never_checkpointed -= other.never_checkpointed;
    checkpoint_evicted -= other.checkpoint_evicted;
    kv_evicted -= other.kv_evicted;
    alignment -= other.alignment;
    in_flight -= other.in_flight;
    below -= other.below;
    return *this;
  }
  std::int64_t sum() const {
    return fresh + never_checkpointed + checkpoint_evicted + kv_evicted + alignment + in_flight +
           below;
  }
  MissReasons& operator+=(const MissReasons& other) {
    fresh += other.fresh;
    never_checkpointed += other.never_checkpointed;
    checkpoint_evicted += other.checkpoint_evicted;
    kv_evicted += other.kv_evicted;
    alignment += other.alignment;
    in_flight += other.in_flight;
    below += other.below;
    return *this;
  }
};

// The prompt's deepest evicted state, and its eviction.
struct EvictedCheckpoint {
  std::int64_t eviction = 0;     // its sequence number
  std::int64_t boundary = 0;     // tokens covered by the state
  std::int64_t pages_since = 0;  // freed by this eviction and all later ones
};

// A match as if the tree knew whole pages only. Two prompts have equal ones if they agree with the
// tree in the same whole pages.
struct PageMatch {
  std::int64_t kv_tokens = 0;
  std::int64_t usable_tokens = 0;
  std::optional<CheckpointKind> checkpoint_kind{};
  MissReasons miss_reasons{};
};

// A state below the arena usable by the prompt after a load. It and the missing KV are each loaded
// from the nearest place.
struct StoredState {
  std::int64_t boundary = 0;
  CheckpointKind kind = CheckpointKind::kTurnEnd;
  TierId tier{};                                 // tier of the state
  std::array<std::int64_t, kMostTiers> pages{};  // pages to load, by tier
  double cost = 0;                               // cost of the load; prefill of one token is 1
};

struct Match {
  std::int64_t prompt_tokens = 0;
  std::int64_t kv_tokens = 0;
  std::int64_t usable_tokens = 0;
  std::optional<CheckpointKind> checkpoint_kind;
  std::optional<std::int64_t> branch_tokens;
  MissReasons miss_reasons;
  PageMatch in_pages{};
  // Set if its eviction is still in the log.
  std::optional<EvictedCheckpoint> evicted{};
  // Deeper than usable_tokens, the deepest first.
  std::vector<StoredState> stored{};
  // For an allocation: useful positions for states inside a long new prompt. They are ascending and
  // whole pages.
  std::vector<std::int64_t> interior_tokens{};
};

// The same request once the stored state was loaded.
Match after_loading(Match match, const StoredState& stored);

}  // namespace tasuki::cache
