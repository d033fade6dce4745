// Why a state stands where it does, and what an answer's end means for the next request.
#pragma once

#include <cstdint>

namespace tasuki::cache {

enum class CheckpointKind : std::uint8_t { kPromptEnd, kTurnEnd, kBranch, kMark, kInterior };

// What an answer's end means for the next request of its conversation.
enum class TurnHint : std::uint8_t { kUnknown, kToolCall, kEndOfTurn };

}  // namespace tasuki::cache
