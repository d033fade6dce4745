#include "dataplane/piece_table.h"

#include <algorithm>

namespace tasuki::dataplane {

namespace {

constexpr std::size_t kHead = 2;
constexpr std::size_t kColumns = 4;

}  // namespace

std::size_t table_words(std::size_t pieces) { return kHead + kColumns * pieces + 1; }

std::int64_t fill_table(std::span<const Piece> pieces, std::int64_t chunk_bytes,
                        std::span<std::int64_t> table) {
  const std::int64_t chunk_units = chunk_bytes / kAlignment;
  const std::size_t count = pieces.size();
  std::int64_t* const local = table.data() + kHead;
  std::int64_t* const remote = local + count;
  std::int64_t* const lengths = remote + count;
  std::int64_t* const firsts = lengths + count;
  table[0] = table[1] = 0;
  std::int64_t chunks = 0;
  for (std::size_t index = 0; index < count; ++index) {
    const auto& [from, to, length] = pieces[index];
    local[index] = from / kAlignment;
    remote[index] = to / kAlignment;
    lengths[index] = length / kAlignment;
    firsts[index] = chunks;
    chunks += (lengths[index] + chunk_units - 1) / chunk_units;
  }
  firsts[count] = chunks;
  return chunks;
}

bool inside(std::span<const Piece> pieces, std::int64_t local_bytes, std::int64_t remote_bytes) {
  return std::ranges::all_of(pieces, [&](const Piece& piece) {
    const auto& [from, to, length] = piece;
    // Do not test offset + length > size: near 2^63 the sum wraps around.
    return from >= 0 && to >= 0 && length >= 1 && from <= local_bytes - length &&
           to <= remote_bytes - length;
  });
}

bool aligned(std::span<const Piece> pieces) {
  return std::ranges::all_of(pieces, [](const Piece& piece) {
    return (piece[0] | piece[1] | piece[2]) % kAlignment == 0;
  });
}

}  // namespace tasuki::dataplane
