// How much of two runs is the same.
#pragma once

#include <cstdint>

#include "core/ids.h"

namespace tasuki::cache {

// Return the number of equal tokens at the start of two runs. Compared as memory.
std::int64_t common_tokens(Tokens left, Tokens right);

}  // namespace tasuki::cache
