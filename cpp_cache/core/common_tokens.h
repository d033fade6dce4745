// How much of two runs is the same.
#pragma once

#include <cstdint>

#include "core/ids.h"

namespace tasuki::cache {

// Tokens that two runs share from their start. Compared as memory.
std::int64_t common_tokens(Tokens left, Tokens right);

}  // namespace tasuki::cache
