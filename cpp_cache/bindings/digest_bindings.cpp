#include "bindings/digest_bindings.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "digest/row_digester.h"
#include "digest/window_digester.h"

namespace py = pybind11;
using namespace py::literals;

namespace tasuki::digest {

namespace {

using Column = py::array_t<std::int64_t, py::array::c_style>;
using Memory = py::array_t<std::uint8_t, py::array::c_style>;

// Keeps the memory that it reads.
struct HeldDigester {
  Memory memory;
  RowDigester digester;
};

Instructions instructions_of(const std::optional<std::string>& name) {
  if (!name) return runnable().back();
  for (const Instructions each : runnable()) {
    if (name_of(each) == *name) return each;
  }
  throw py::value_error("this CPU has no instructions \"" + *name + "\"");
}

HeldDigester held(const Memory& memory, std::int64_t longest,
                  const std::optional<std::string>& instructions) {
  const std::span bytes(memory.data(), static_cast<std::size_t>(memory.size()));
  return {memory, RowDigester(std::as_bytes(bytes), longest, instructions_of(instructions))};
}

using Parts = std::vector<std::tuple<std::int64_t, std::int64_t, std::uint64_t>>;

std::vector<Part> parts_of(const Parts& parts) {
  std::vector<Part> made;
  for (const auto& [offset, length, key] : parts) made.push_back({offset, length, key});
  return made;
}

WindowGeometry geometry_of(const std::vector<std::pair<Parts, Parts>>& layers,
                           std::int64_t page_stride, std::int64_t slot_stride) {
  WindowGeometry geometry{{}, page_stride, slot_stride};
  for (const auto& [of_page, of_slot] : layers) {
    geometry.layers.push_back({parts_of(of_page), parts_of(of_slot)});
  }
  return geometry;
}

// A row a column of [3, rows], and one more of zeros where rows are odd: each line begins at 16
// bytes.
Column table_of(const RowTable& rows) {
  const std::size_t count = rows.offsets.size();
  const std::size_t columns = count + count % 2;
  Column table({std::size_t{3}, columns});
  std::int64_t* line = table.mutable_data();
  for (const auto* each : {&rows.offsets, &rows.lengths, &rows.seeds}) {
    std::fill(std::copy(each->begin(), each->end(), line), line + columns, 0);
    line += columns;
  }
  return table;
}

std::span<const std::int64_t> span_of(const Column& column) {
  if (column.ndim() != 1) throw py::value_error("a column of rows has one dimension");
  return {column.data(), static_cast<std::size_t>(column.size())};
}

}  // namespace

void bind_digests(py::module_& module) {
  module.def("digest_instructions", [] {
    std::vector<std::string> names;
    for (const Instructions each : runnable()) names.emplace_back(name_of(each));
    return names;
  });
  py::class_<HeldDigester>(module, "RowDigester")
      .def(py::init(&held), py::arg("memory").noconvert(), "longest"_a,
           "instructions"_a = py::none())
      .def_property_readonly("instructions",
                             [](const HeldDigester& self) {
                               return std::string(name_of(self.digester.instructions()));
                             })
      .def(
          "digest",
          [](const HeldDigester& self, const Column& offsets, const Column& lengths,
             const Column& seeds) {
            const Rows rows{span_of(offsets), span_of(lengths), span_of(seeds)};
            const py::gil_scoped_release others_may_run;
            return self.digester.digest(rows);
          },
          py::arg("offsets").noconvert(), py::arg("lengths").noconvert(),
          py::arg("seeds").noconvert());
  py::class_<WindowGeometry>(module, "WindowGeometry")
      .def(py::init(&geometry_of), "layers"_a, "page_stride"_a, "slot_stride"_a)
      .def(
          "rows",
          [](const WindowGeometry& self, std::uint64_t room, std::uint64_t generation,
             std::int64_t first_layer, std::int64_t end_layer, std::int64_t first_page,
             const std::vector<std::int64_t>& pages, std::optional<std::int64_t> slot) {
            const RowTable rows =
                self.rows_of({room, generation, first_layer, end_layer, first_page, pages, slot});
            return std::pair(rows.offsets.size(), table_of(rows));
          },
          "room"_a, "generation"_a, "first_layer"_a, "end_layer"_a, "first_page"_a, "pages"_a,
          "slot"_a);
  py::class_<WindowDigester>(module, "WindowDigester")
      .def(py::init([](const HeldDigester& rows, const WindowGeometry& geometry) {
             return WindowDigester(rows.digester, geometry);
           }),
           "rows"_a, "geometry"_a, py::keep_alive<1, 2>())
      .def(
          "digest",
          [](const WindowDigester& self, std::uint64_t room, std::uint64_t generation,
             std::int64_t first_layer, std::int64_t end_layer, std::int64_t first_page,
             const std::vector<std::int64_t>& pages, std::optional<std::int64_t> slot) {
            const py::gil_scoped_release others_may_run;
            return self.digest({room, generation, first_layer, end_layer, first_page, pages, slot});
          },
          "room"_a, "generation"_a, "first_layer"_a, "end_layer"_a, "first_page"_a, "pages"_a,
          "slot"_a);
}

}  // namespace tasuki::digest
