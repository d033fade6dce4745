// The Python face of views of the tree.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "cpp_cache/hybrid_tree.h"

namespace tasuki::cache {

// Adds the views' classes to the module, and view() and node_at() to the tree. `kinds` is the
// module's CheckpointKind.
void bind_views(pybind11::module_& module,
                pybind11::class_<HybridTree, std::shared_ptr<HybridTree>>& tree,
                const pybind11::object& kinds);

}  // namespace tasuki::cache
