// Kinds of checkpoints, and hints from an answer's end.
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

// End of an answer, as a hint for the conversation's next request.
enum class TurnHint : std::uint8_t { kUnknown, kToolCall, kEndOfTurn };

}  // namespace tasuki::cache
