// The answer to "how much of this prompt is cached, and why is the rest not?". Plain values; hold
// nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace tasuki::cache {

enum class CheckpointKind : std::uint8_t { kPromptEnd, kTurnEnd, kBranch, kMark, kInterior };

// What the end of an answer says about the next request of its conversation.
enum class TurnHint : std::uint8_t { kUnknown, kToolCall, kEndOfTurn };

// Tokens that were not usable, by cause. usable_tokens + sum() == prompt_tokens.
struct Causes {
  std::int64_t fresh = 0;               // never seen, or forgotten ("new" where C++ has no keyword)
  std::int64_t never_checkpointed = 0;  // KV stands, no state ever did
  std::int64_t checkpoint_evicted = 0;  // KV stands, a state that covered it was evicted
  std::int64_t kv_evicted = 0;
  std::int64_t alignment = 0;  // stands, but page granularity or the cap at prompt - 1 cuts it
  std::int64_t in_flight = 0;  // a live lease is computing these very tokens

  std::int64_t sum() const {
    return fresh + never_checkpointed + checkpoint_evicted + kv_evicted + alignment + in_flight;
  }
  Causes& operator+=(const Causes& other) {
    fresh += other.fresh;
    never_checkpointed += other.never_checkpointed;
    checkpoint_evicted += other.checkpoint_evicted;
    kv_evicted += other.kv_evicted;
    alignment += other.alignment;
    in_flight += other.in_flight;
    return *this;
  }
};

// The deepest state of the prompt that is gone, and what took it.
struct LostState {
  std::int64_t eviction = 0;     // its sequence number
  std::int64_t boundary = 0;     // tokens that it covered
  std::int64_t pages_since = 0;  // freed by this eviction and all later ones
};

// A match as it were if the tree knew whole pages only: equal for any two prompts that agree with
// the tree in the same whole pages, whatever they have in common inside the next one.
struct PageMatch {
  std::int64_t kv_tokens = 0;
  std::int64_t usable_tokens = 0;
  std::optional<CheckpointKind> checkpoint_kind{};
  Causes causes{};
};

struct Match {
  std::int64_t prompt_tokens = 0;
  std::int64_t kv_tokens = 0;
  std::int64_t usable_tokens = 0;
  std::optional<CheckpointKind> checkpoint_kind;
  std::optional<std::int64_t> branch_tokens;
  Causes causes;
  PageMatch in_pages{};
  // Where what was evicted is still remembered.
  std::optional<LostState> lost{};
  // Of a lease: where states inside a long first-seen prompt would pay. Ascending, whole pages.
  std::vector<std::int64_t> interior_tokens{};
};

}  // namespace tasuki::cache
