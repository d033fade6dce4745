// The Python face of errors, configuration, matches, counts and evictions.
#pragma once

#include <pybind11/pybind11.h>

#include "bindings/checkpoint_kinds.h"

namespace tasuki::cache {

void bind_errors(pybind11::module_& module);
void bind_values(pybind11::module_& module, const CheckpointKinds& kinds);
void bind_transfers(pybind11::module_& module);
void bind_evictions(pybind11::module_& module, const CheckpointKinds& kinds);

}  // namespace tasuki::cache
