// Report of a request at its end. Plain values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/checkpoint_kind.h"
#include "core/ids.h"

namespace tasuki::cache {

// A state inserted by a request.
struct InsertedState {
  std::int64_t boundary;
  CheckpointKind kind;
  TurnHint hint;
};

struct Served {
  std::string salt;
  std::vector<Token> tokens;  // prompt and answer
  std::int64_t prompt_tokens;
  std::vector<InsertedState> states;
  std::int64_t now_ms;
};

}  // namespace tasuki::cache
