// Naming of a broken invariant by a check.
#pragma once

#include <string>

#include "core/errors.h"

namespace tasuki::cache {

// Throws IntegrityError unless it holds. invariant: its number in cache/prefix_cache.h.
inline void require(bool holds, int invariant, const std::string& what) {
  if (holds) return;
  throw IntegrityError("invariant " + std::to_string(invariant) + ": " + what);
}

}  // namespace tasuki::cache
