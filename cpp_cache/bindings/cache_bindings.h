// The Python face of PrefixCache: pycache/_cpp_cache.pyi is its contract. Validates, converts,
// decides nothing.
//
// Token arrays are read in place and never kept; page arrays are handed out read-only.
#pragma once

#include <pybind11/pybind11.h>

#include "bindings/allocation_handle.h"
#include "bindings/checkpoint_kinds.h"

namespace tasuki::cache {

using CacheClass = pybind11::class_<PrefixCache, CachePtr>;

// Bind the cache without events and views; these have files of their own.
CacheClass bind_cache(pybind11::module_& module, const CheckpointKinds& kinds);

}  // namespace tasuki::cache
