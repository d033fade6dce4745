// Length of the common start of two runs.
#pragma once

#include <cstdint>

#include "core/ids.h"

namespace tasuki::cache {

// Return the number of equal tokens at the start of two runs. Compared as memory.
std::int64_t common_tokens(Tokens left, Tokens right);

}  // namespace tasuki::cache
