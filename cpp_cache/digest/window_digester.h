// Digests of layer chunks in an arena: a chunk's rows and their digest in one call.
// transfer/chunks/digest.py has the definition, and the reference (chunk_rows).
#pragma once

#include <cstdint>

#include "digest/row_digester.h"
#include "digest/window_geometry.h"

namespace tasuki::digest {

// Knows no peers and no headers. Calls may run in parallel. The digester outlives this.
class WindowDigester {
 public:
  WindowDigester(const RowDigester& rows, WindowGeometry geometry);

  // Digest a layer chunk, as RowDigester::digest. Throws std::out_of_range also for an unknown
  // layer. REQUIRES: page and slot ids are those of an arena.
  std::uint64_t digest(const WindowPlaces& window) const;

 private:
  const RowDigester& rows_;
  WindowGeometry geometry_;
};

}  // namespace tasuki::digest
