// Rows of an arena's words in a layer chunk. transfer/chunks/digest.py has the definition, and the
// reference (chunk_rows).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace tasuki::digest {

// A run of words with a sum of its own, in page 0 or slot 0. key: bits of its name within a layer,
// beside those of a page's logical index.
struct Part {
  std::int64_t offset;
  std::int64_t length;
  std::uint64_t key;
};

// Parts of one layer sent with a page, and with a state; either may be empty.
struct LayerParts {
  std::vector<Part> of_page;
  std::vector<Part> of_slot;
};

// Layers [first_layer, end_layer); pages[i] holds logical page first_page + i; slot: set if a state
// is sent too.
struct WindowPlaces {
  std::uint64_t room;
  std::uint64_t generation;
  std::int64_t first_layer;
  std::int64_t end_layer;
  std::int64_t first_page;
  std::span<const std::int64_t> pages;
  std::optional<std::int64_t> slot;
};

// Parts of a layer chunk in order: one entry per row, offsets and lengths in words, seeds as bits.
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

  // Append the layer chunk's rows to `rows`. Throws std::out_of_range for an unknown layer, before
  // it adds a row. REQUIRES: page and slot ids are those of an arena.
  void add_rows(const WindowPlaces& window, RowTable& rows) const;
};

}  // namespace tasuki::digest
