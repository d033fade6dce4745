// Bindings of counters, bells, and the GPU part of a hand-over's data plane.
#pragma once

#include <pybind11/pybind11.h>

namespace tasuki::dataplane {

// REQUIRES: digests are bound.
void bind_dataplane(pybind11::module_& module);

}  // namespace tasuki::dataplane
