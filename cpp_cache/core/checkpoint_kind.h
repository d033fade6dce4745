// Why a state stands where it does, and what an answer's end means for the next request.
#pragma once

#include <cstdint>

namespace tasuki::cache {

// kMessageEnd: the end of the last message, before an answer's opening.
enum class CheckpointKind : std::uint8_t {
  kPromptEnd,
  kTurnEnd,
  kBranch,
  kMark,
  kInterior,
  kMessageEnd
};

// What an answer's end means for the next request of its conversation.
enum class TurnHint : std::uint8_t { kUnknown, kToolCall, kEndOfTurn };

}  // namespace tasuki::cache
