#include "digest/window_digester.h"

#include <utility>

namespace tasuki::digest {

WindowDigester::WindowDigester(const RowDigester& rows, WindowGeometry geometry)
    : rows_(rows), geometry_(std::move(geometry)) {}

std::uint64_t WindowDigester::digest(const WindowPlaces& window) const {
  RowTable table;
  geometry_.add_rows(window, table);
  return rows_.digest({table.offsets, table.lengths, table.seeds});
}

}  // namespace tasuki::digest
