// Which bytes of an arena go where in another of the same geometry. transfer/windows/descriptors.py
// has the twin of this (window_pieces).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "digest/window_geometry.h"

namespace tasuki::digest {

// From which byte, to which, how many.
using Piece = std::array<std::int64_t, 3>;

struct SlotPair {
  std::int64_t here, there;
};

// Layers [first_layer, end_layer); pages[i] here goes to there[i]; slots: where a state travels
// too.
struct WindowCopy {
  std::int64_t first_layer;
  std::int64_t end_layer;
  std::span<const std::int64_t> here;
  std::span<const std::int64_t> there;
  std::optional<SlotPair> slots;
};

// Layer by layer; pages that are neighbours on both sides are one piece.
// Throws std::out_of_range where a layer is none of the geometry's, std::invalid_argument unless
// there are as many pages there as here.
// REQUIRES: ids are those of an arena; a page's length is its stride.
std::vector<Piece> pieces_of(const WindowGeometry& geometry, const WindowCopy& window);

}  // namespace tasuki::digest
