// The Python face of the tree's events.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "cpp_cache/hybrid_tree.h"

namespace tasuki::cache {

// Adds the events' classes and prefix_hashes() to the module, and watch(), drain_events() and
// unwatch() to the tree. `kinds` is the module's CheckpointKind.
void bind_events(pybind11::module_& module,
                 pybind11::class_<HybridTree, std::shared_ptr<HybridTree>>& tree,
                 const pybind11::object& kinds);

}  // namespace tasuki::cache
