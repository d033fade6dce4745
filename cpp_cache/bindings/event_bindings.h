// The Python face of the tree's events.
#pragma once

#include <pybind11/pybind11.h>

#include "bindings/cache_bindings.h"
#include "bindings/checkpoint_kinds.h"

namespace tasuki::cache {

// Adds the events' classes and prefix_hashes() to the module, and watch(), drain_events() and
// unwatch() to the cache.
void bind_events(pybind11::module_& module, CacheClass& cache, const CheckpointKinds& kinds);

}  // namespace tasuki::cache
