// Segments of a layer chunk: bytes of an arena and their places in another of the same geometry.
// transfer/chunks/descriptors.py has the reference (chunk_segments).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "digest/window_geometry.h"

namespace tasuki::digest {

// Source byte, target byte, length.
using Piece = std::array<std::int64_t, 3>;

struct SlotPair {
  std::int64_t here, there;
};

// Layers [first_layer, end_layer); pages[i] here goes to there[i]; slots: set if a state is sent
// too.
struct WindowCopy {
  std::int64_t first_layer;
  std::int64_t end_layer;
  std::span<const std::int64_t> here;
  std::span<const std::int64_t> there;
  std::optional<SlotPair> slots;
};

// Return the segments, layer by layer; pages that are neighbours on both sides are one segment.
// Throws std::out_of_range for an unknown layer, std::invalid_argument for different numbers of
// pages. REQUIRES: ids are those of an arena; a page's length is its stride.
std::vector<Piece> pieces_of(const WindowGeometry& geometry, const WindowCopy& window);

}  // namespace tasuki::digest
