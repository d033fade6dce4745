// Digests windows out of an arena: which rows a window is made of, and their digest, in one call.
// transfer/windows/digest.py says what is digested, and has the twin of this (window_rows).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "digest/row_digester.h"

namespace tasuki::digest {

// Where one layer's bytes lie in an arena, in words.
struct LayerPlace {
  // Whether it keeps blocks of pages; if not, states.
  bool has_pages;
  // Of page 0, or of slot 0.
  std::int64_t offset;
};

// An arena's geometry, in words. Lengths: of what travels of a page's block and of a state, from
// their heads.
struct WindowGeometry {
  std::vector<LayerPlace> layers;
  std::int64_t page_stride;
  std::int64_t slot_stride;
  std::int64_t page_length;
  std::int64_t state_length;
};

// Layers [first_layer, end_layer); pages[i] holds logical page first_page + i; slot: where a state
// travels too.
struct WindowPlaces {
  std::uint64_t room;
  std::uint64_t generation;
  std::int64_t first_layer;
  std::int64_t end_layer;
  std::int64_t first_page;
  std::span<const std::int64_t> pages;
  std::optional<std::int64_t> slot;
};

// Knows no peers and no headers. Calls may run in parallel. The digester outlives this.
class WindowDigester {
 public:
  WindowDigester(const RowDigester& rows, WindowGeometry geometry);

  // As RowDigester::digest. Throws std::out_of_range too where a layer is none of the geometry's.
  // REQUIRES: page and slot ids are those of an arena.
  std::uint64_t digest(const WindowPlaces& window) const;

 private:
  const RowDigester& rows_;
  WindowGeometry geometry_;
};

}  // namespace tasuki::digest
