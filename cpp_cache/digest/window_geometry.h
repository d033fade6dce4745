// Which rows of an arena's words a window is made of. transfer/windows/digest.py says what is
// digested, and has the twin of this (window_rows).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace tasuki::digest {

// A run of words that is summed alone, of page 0 or of slot 0. key: bits of its name within a
// layer, beside those of a page's logical index.
struct Part {
  std::int64_t offset;
  std::int64_t length;
  std::uint64_t key;
};

// What of one layer travels with a page, and what with a state; either may be empty.
struct LayerParts {
  std::vector<Part> of_page;
  std::vector<Part> of_slot;
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

// What a window is made of, in order: one entry a row, offsets and lengths in words, seeds as bits.
struct RowTable {
  std::vector<std::int64_t> offsets, lengths, seeds;
};

// An arena's geometry, in words.
struct WindowGeometry {
  std::vector<LayerParts> layers;
  std::int64_t page_stride;
  std::int64_t slot_stride;

  // Throws std::out_of_range unless layers [first, end) are among these.
  void check_layers(std::int64_t first, std::int64_t end) const;

  // The window's rows, behind those that `rows` has.
  // Throws std::out_of_range where a layer is none of these, before it adds one.
  // REQUIRES: page and slot ids are those of an arena.
  void add_rows(const WindowPlaces& window, RowTable& rows) const;
};

}  // namespace tasuki::digest
