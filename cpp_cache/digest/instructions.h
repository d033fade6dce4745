// CPU instructions for multiplying words.
#pragma once

#include <span>
#include <string_view>

namespace tasuki::digest {

enum class Instructions { kScalar, kAvx2, kAvx512 };

// Return the instructions of this CPU, slowest first; never empty. kAvx512 means F and DQ.
std::span<const Instructions> runnable();

std::string_view name_of(Instructions instructions);

}  // namespace tasuki::digest
