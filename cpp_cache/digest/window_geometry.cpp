#include "digest/window_geometry.h"

#include <stdexcept>
#include <string>

#include "digest/row_digester.h"

namespace tasuki::digest {

namespace {

void add(RowTable& table, std::int64_t offset, std::int64_t length, std::uint64_t seed) {
  table.offsets.push_back(offset);
  table.lengths.push_back(length);
  table.seeds.push_back(static_cast<std::int64_t>(seed));
}

}  // namespace

void WindowGeometry::check_layers(std::int64_t first, std::int64_t end) const {
  const auto known = static_cast<std::int64_t>(layers.size());
  if (first < 0 || end > known) {
    throw std::out_of_range("layers " + std::to_string(first) + " to " + std::to_string(end) +
                            " are not among " + std::to_string(known));
  }
}

void WindowGeometry::add_rows(const WindowPlaces& window, RowTable& table) const {
  check_layers(window.first_layer, window.end_layer);
  const std::uint64_t identity = splitmix64(splitmix64(window.room) ^ window.generation);
  for (std::int64_t layer = window.first_layer; layer < window.end_layer; ++layer) {
    const LayerParts& parts = layers[static_cast<std::size_t>(layer)];
    const std::uint64_t seed = splitmix64(identity ^ static_cast<std::uint64_t>(layer));
    auto logical = static_cast<std::uint64_t>(window.first_page);
    for (const std::int64_t page : window.pages) {
      for (const Part& part : parts.of_page) {
        add(table, part.offset + page * page_stride, part.length,
            splitmix64(seed ^ logical ^ part.key));
      }
      ++logical;
    }
    if (!window.slot) continue;
    for (const Part& part : parts.of_slot) {
      add(table, part.offset + *window.slot * slot_stride, part.length,
          splitmix64(seed ^ part.key));
    }
  }
}

}  // namespace tasuki::digest
