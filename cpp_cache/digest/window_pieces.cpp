#include "digest/window_pieces.h"

#include <stdexcept>
#include <string>

namespace tasuki::digest {

namespace {

constexpr std::int64_t kWordBytes = 8;

// Return a layer's runs, as if its page 0 were at byte 0.
std::vector<Piece> page_runs(const WindowGeometry& geometry, const WindowCopy& window) {
  const std::int64_t stride = kWordBytes * geometry.page_stride;
  std::vector<Piece> runs;
  for (std::size_t page = 0; page < window.here.size(); ++page) {
    const std::int64_t here = window.here[page] * stride;
    const std::int64_t there = window.there[page] * stride;
    if (!runs.empty()) {
      auto& [from, to, length] = runs.back();
      if (from + length == here && to + length == there) {
        length += stride;
        continue;
      }
    }
    runs.push_back({here, there, stride});
  }
  return runs;
}

}  // namespace

std::vector<Piece> pieces_of(const WindowGeometry& geometry, const WindowCopy& window) {
  geometry.check_layers(window.first_layer, window.end_layer);
  if (window.here.size() != window.there.size()) {
    throw std::invalid_argument(std::to_string(window.here.size()) + " pages go to " +
                                std::to_string(window.there.size()));
  }
  // Pages of every layer make the same runs, shifted by a fixed number of bytes.
  const std::vector<Piece> runs = page_runs(geometry, window);
  std::vector<Piece> pieces;
  for (std::int64_t layer = window.first_layer; layer < window.end_layer; ++layer) {
    const LayerParts& parts = geometry.layers[static_cast<std::size_t>(layer)];
    if (!parts.of_page.empty()) {
      const std::int64_t offset = kWordBytes * parts.of_page.front().offset;
      for (const auto& [from, to, length] : runs) {
        pieces.push_back({offset + from, offset + to, length});
      }
    }
    if (!parts.of_slot.empty() && window.slots) {
      const std::int64_t offset = kWordBytes * parts.of_slot.front().offset;
      const std::int64_t stride = kWordBytes * geometry.slot_stride;
      const Part& last = parts.of_slot.back();
      pieces.push_back({offset + window.slots->here * stride, offset + window.slots->there * stride,
                        kWordBytes * (last.offset + last.length) - offset});
    }
  }
  return pieces;
}

}  // namespace tasuki::digest
