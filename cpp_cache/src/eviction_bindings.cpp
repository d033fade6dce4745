#include "eviction_bindings.h"

#include <pybind11/stl.h>

#include <string>

#include "cpp_cache/eviction_log.h"

namespace py = pybind11;

namespace tasuki::cache {

namespace {

std::string name_of(EvictionKind kind) {
  switch (kind) {
    case EvictionKind::kLeafPages:
      return "pages";
    case EvictionKind::kCheckpoint:
      return "checkpoint";
    case EvictionKind::kTail:
      break;
  }
  return "tail";
}

}  // namespace

void bind_evictions(py::module_& module, const py::object& kinds) {
  py::class_<Eviction>(module, "Eviction")
      .def_readonly("sequence", &Eviction::sequence)
      .def_property_readonly("kind",
                             [](const Eviction& eviction) { return name_of(eviction.kind); })
      .def_property_readonly(
          "checkpoint_kind",
          [kinds](const Eviction& eviction) -> py::object {
            if (!eviction.checkpoint_kind) return py::none();
            return py::list(kinds)[static_cast<std::size_t>(*eviction.checkpoint_kind)];
          })
      .def_readonly("boundary", &Eviction::boundary)
      .def_readonly("pages", &Eviction::pages)
      .def_readonly("score", &Eviction::score)
      .def_property_readonly("lease", [](const Eviction& eviction) -> std::optional<std::int64_t> {
        if (!eviction.lease) return std::nullopt;
        return raw(*eviction.lease);
      });
}

}  // namespace tasuki::cache
