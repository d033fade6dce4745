// Table that a launch of the store kernel reads: transfer/transports/nvlink/store_kernel.py.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "digest/window_pieces.h"

namespace tasuki::dataplane {

using digest::Piece;

// Bytes: offsets and lengths of pieces are multiples of it.
inline constexpr std::int64_t kAlignment = 16;

// Return the length of the table of that many pieces, in words.
std::size_t table_words(std::size_t pieces);

// Write the table: number of chunks of `chunk_bytes`, number of finished programs, padding, then
// columns: local, remote and length of each piece in units of kAlignment, and the first chunk of
// each, with the number of chunks behind them. REQUIRES: table has table_words(pieces.size());
// pieces are multiples of kAlignment.
std::int64_t fill_table(std::span<const Piece> pieces, std::int64_t chunk_bytes,
                        std::span<std::int64_t> table);

// Return true if every piece has a byte and lies inside both sides' registered bytes.
bool inside(std::span<const Piece> pieces, std::int64_t local_bytes, std::int64_t remote_bytes);

bool aligned(std::span<const Piece> pieces);

}  // namespace tasuki::dataplane
