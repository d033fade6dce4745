// The Python face of Eviction.
#pragma once

#include <pybind11/pybind11.h>

namespace tasuki::cache {

// kinds: the CheckpointKind enumeration.
void bind_evictions(pybind11::module_& module, const pybind11::object& kinds);

}  // namespace tasuki::cache
