// Sums of 64-bit words times keys, modulo 2^64, in the fastest order.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "digest/instructions.h"

namespace tasuki::digest {

// Rows read side by side. Memory answers several streams faster than one, and a key is loaded once
// for all of them.
inline constexpr std::size_t kRowsTogether = 4;

using RowStarts = std::array<const std::byte*, kRowsTogether>;
using RowSums = std::array<std::uint64_t, kRowsTogether>;

// Sum `count` words of each row, little-endian at any alignment, times keys[0, count). Two forms of
// one sum: a single row uses as many accumulators as several.
struct SumFunctions {
  RowSums (*together)(const RowStarts& rows, const std::uint64_t* keys, std::size_t count);
  std::uint64_t (*alone)(const std::byte* row, const std::uint64_t* keys, std::size_t count);
};

// REQUIRES: the CPU has them (runnable()).
SumFunctions sums_by(Instructions instructions);

}  // namespace tasuki::digest
