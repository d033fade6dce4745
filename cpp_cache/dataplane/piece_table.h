// The table that a launch of the store kernel reads: transfer/transports/nvlink/store_kernel.py.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "digest/window_pieces.h"

namespace tasuki::dataplane {

using digest::Piece;

// Bytes: what offsets and lengths of pieces are multiples of.
inline constexpr std::int64_t kAlignment = 16;

// Length of the table of that many pieces, in words.
std::size_t table_words(std::size_t pieces);

// Writes the table; how many chunks of `chunk_bytes` it has: how many programs are done, padding,
// then columns: local, remote and length of each piece in units of kAlignment, and the chunk it
// begins with, to which the number of chunks is added.
// REQUIRES: table has table_words(pieces.size()); pieces are multiples of kAlignment.
std::int64_t fill_table(std::span<const Piece> pieces, std::int64_t chunk_bytes,
                        std::span<std::int64_t> table);

// Whether every piece has a byte and lies inside both sides' registered bytes.
bool inside(std::span<const Piece> pieces, std::int64_t local_bytes, std::int64_t remote_bytes);

bool aligned(std::span<const Piece> pieces);

}  // namespace tasuki::dataplane
