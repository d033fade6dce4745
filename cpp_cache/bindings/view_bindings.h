// The Python face of views of the tree.
#pragma once

#include <pybind11/pybind11.h>

#include "bindings/cache_bindings.h"
#include "bindings/checkpoint_kinds.h"

namespace tasuki::cache {

// Adds the views' classes to the module, and view(), node_at() and those of held states to the
// cache.
void bind_views(pybind11::module_& module, CacheClass& cache, const CheckpointKinds& kinds);

}  // namespace tasuki::cache
