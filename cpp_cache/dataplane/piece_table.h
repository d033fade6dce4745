// Table read by a launch of the store kernel: transfer/transports/nvlink/store_kernel.py.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "digest/window_pieces.h"

namespace tasuki::dataplane {

using digest::Piece;

// Bytes: offsets and lengths of pieces are multiples of it.
inline constexpr std::int64_t kAlignment = 16;

// Return the length of a table of `pieces` segments, in words.
std::size_t table_words(std::size_t pieces);

// Write the table: number of chunks of `chunk_bytes`, number of finished programs, padding, then
// columns. The columns are local, remote and length of each segment in units of kAlignment, and its
// first chunk. The last column ends with the number of all chunks. REQUIRES: table has
// table_words(pieces.size()); pieces are multiples of kAlignment.
std::int64_t fill_table(std::span<const Piece> pieces, std::int64_t chunk_bytes,
                        std::span<std::int64_t> table);

// Return true if every piece has a byte and lies inside both sides' registered bytes.
bool inside(std::span<const Piece> pieces, std::int64_t local_bytes, std::int64_t remote_bytes);

bool aligned(std::span<const Piece> pieces);

}  // namespace tasuki::dataplane
