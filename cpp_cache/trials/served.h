// What a request did, reported when it ends. Plain values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/checkpoint_kind.h"
#include "core/ids.h"

namespace tasuki::cache {

// A state that a request inserted.
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
