// Why a state stands where it does, and what the end of an answer says of the next request.
#pragma once

#include <cstdint>

namespace tasuki::cache {

enum class CheckpointKind : std::uint8_t { kPromptEnd, kTurnEnd, kBranch, kMark, kInterior };

// What the end of an answer says about the next request of its conversation.
enum class TurnHint : std::uint8_t { kUnknown, kToolCall, kEndOfTurn };

}  // namespace tasuki::cache
