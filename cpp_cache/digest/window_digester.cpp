#include "digest/window_digester.h"

#include <utility>

namespace tasuki::digest {

WindowDigester::WindowDigester(const RowDigester& rows, WindowGeometry geometry)
    : rows_(rows), geometry_(std::move(geometry)) {}

std::uint64_t WindowDigester::digest(const WindowPlaces& window) const {
  const RowTable table = geometry_.rows_of(window);
  return rows_.digest({table.offsets, table.lengths, table.seeds});
}

}  // namespace tasuki::digest
