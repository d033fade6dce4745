#include "digest/window_digester.h"

#include <stdexcept>
#include <string>
#include <utility>

namespace tasuki::digest {

namespace {

// Stands where a page's logical index would; no prompt has that many pages.
constexpr std::uint64_t kState = std::uint64_t{1} << 32;

struct RowTable {
  std::vector<std::int64_t> offsets, lengths, seeds;

  void add(std::int64_t offset, std::int64_t length, std::uint64_t seed) {
    offsets.push_back(offset);
    lengths.push_back(length);
    seeds.push_back(static_cast<std::int64_t>(seed));
  }
};

}  // namespace

WindowDigester::WindowDigester(const RowDigester& rows, WindowGeometry geometry)
    : rows_(rows), geometry_(std::move(geometry)) {}

std::uint64_t WindowDigester::digest(const WindowPlaces& window) const {
  const auto layers = static_cast<std::int64_t>(geometry_.layers.size());
  if (window.first_layer < 0 || window.end_layer > layers) {
    throw std::out_of_range("layers " + std::to_string(window.first_layer) + " to " +
                            std::to_string(window.end_layer) + " are not among " +
                            std::to_string(layers));
  }
  const std::uint64_t identity = splitmix64(splitmix64(window.room) ^ window.generation);
  RowTable table;
  for (std::int64_t layer = window.first_layer; layer < window.end_layer; ++layer) {
    const LayerPlace& place = geometry_.layers[static_cast<std::size_t>(layer)];
    const std::uint64_t seed = splitmix64(identity ^ static_cast<std::uint64_t>(layer));
    if (place.has_pages) {
      auto logical = static_cast<std::uint64_t>(window.first_page);
      for (const std::int64_t page : window.pages) {
        table.add(place.offset + page * geometry_.page_stride, geometry_.page_length,
                  splitmix64(seed ^ logical++));
      }
    } else if (window.slot) {
      table.add(place.offset + *window.slot * geometry_.slot_stride, geometry_.state_length,
                splitmix64(seed ^ kState));
    }
  }
  return rows_.digest({table.offsets, table.lengths, table.seeds});
}

}  // namespace tasuki::digest
