// Digests of rows of 64-bit words in a given memory. Definition: transfer/chunks/digest.py.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "digest/row_sums.h"

namespace tasuki::digest {

// One entry per row: offsets and lengths in words of the memory, seeds as bits. The spans have
// equal lengths.
struct Rows {
  std::span<const std::int64_t> offsets;
  std::span<const std::int64_t> lengths;
  std::span<const std::int64_t> seeds;
};

// A bijection of 64-bit integers; every input bit changes every output bit (splitmix64).
constexpr std::uint64_t splitmix64(std::uint64_t value) {
  value += 0x9E3779B97F4A7C15u;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBu;
  return value ^ (value >> 31);
}

// Owns the keys; the memory is the caller's, and outlives this. Knows no layers and no pages. Calls
// may run in parallel, beside writers of other rows.
class RowDigester {
 public:
  // longest: words of the longest row there will be.
  // Throws std::invalid_argument unless the memory is whole words and this CPU has `instructions`.
  RowDigester(std::span<const std::byte> memory, std::int64_t longest, Instructions instructions);

  Instructions instructions() const { return instructions_; }

  // The sum of splitmix64(seed ^ row's sum) over the rows; 0 of none.
  // Throws std::out_of_range, naming the row, before anything outside the memory is read;
  // std::invalid_argument if the spans differ in length.
  std::uint64_t digest(const Rows& rows) const;

 private:
  void check(const Rows& rows) const;

  std::span<const std::byte> memory_;
  std::vector<std::uint64_t> keys_;
  Instructions instructions_;
  SumFunctions sums_;
};

}  // namespace tasuki::digest
