// The Python face of RowDigester.
#pragma once

#include <pybind11/pybind11.h>

namespace tasuki::digest {

void bind_digests(pybind11::module_& module);

}  // namespace tasuki::digest
