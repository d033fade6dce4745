// Counters, bells, and what of a hand-over's data plane runs on a GPU, bound for Python.
#pragma once

#include <pybind11/pybind11.h>

namespace tasuki::dataplane {

// REQUIRES: digests are bound.
void bind_dataplane(pybind11::module_& module);

}  // namespace tasuki::dataplane
