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
#include "digest/window_pieces.h"

namespace py = pybind11;
using namespace py::literals;

namespace tasuki::digest {

namespace {

using Column = py::array_t<std::int64_t, py::array::c_style>;
using Memory = py::array_t<std::uint8_t, py::array::c_style>;

// Keeps the memory read by the digester.
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

// room, generation, first and end layer, first page, pages, slot
using Given = std::tuple<std::uint64_t, std::uint64_t, std::int64_t, std::int64_t, std::int64_t,
                         std::vector<std::int64_t>, std::optional<std::int64_t>>;

WindowPlaces places_of(const Given& given) {
  const auto& [room, generation, first_layer, end_layer, first_page, pages, slot] = given;
  return {room, generation, first_layer, end_layer, first_page, pages, slot};
}

// How many rows there are, and [5, columns] of them: row_table in transfer/chunks/digest.py.
std::pair<std::size_t, Column> table_of(const WindowGeometry& geometry,
                                        const std::vector<Given>& windows) {
  RowTable rows;
  std::vector<std::int64_t> numbers;
  for (const Given& window : windows) {
    geometry.add_rows(places_of(window), rows);
    numbers.resize(rows.offsets.size(), static_cast<std::int64_t>(&window - windows.data()));
  }
  const std::size_t count = rows.offsets.size();
  std::size_t columns = std::max(count, windows.size());
  columns += columns % 2;
  Column table({std::size_t{5}, columns});
  std::int64_t* line = table.mutable_data();
  for (const auto* each : {&rows.offsets, &rows.lengths, &rows.seeds, &numbers}) {
    std::fill(std::copy(each->begin(), each->end(), line), line + columns, 0);
    line += columns;
  }
  std::fill(line, line + columns, 0);
  return {count, std::move(table)};
}

using Ids = std::vector<std::int64_t>;

// [pieces, 3]
Column piece_table(const WindowGeometry& geometry, std::int64_t first_layer, std::int64_t end_layer,
                   const std::pair<Ids, Ids>& pages,
                   const std::optional<std::pair<std::int64_t, std::int64_t>>& slots) {
  WindowCopy window{first_layer, end_layer, pages.first, pages.second, std::nullopt};
  if (slots) window.slots = {slots->first, slots->second};
  const std::vector<Piece> pieces = pieces_of(geometry, window);
  Column table({pieces.size(), std::size_t{3}});
  std::int64_t* to = table.mutable_data();
  for (const Piece& piece : pieces) to = std::copy(piece.begin(), piece.end(), to);
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
      .def("rows", &table_of, "windows"_a)
      .def("pieces", &piece_table, "first_layer"_a, "end_layer"_a, "pages"_a, "slots"_a);
  py::class_<WindowDigester>(module, "WindowDigester")
      .def(py::init([](const HeldDigester& rows, const WindowGeometry& geometry) {
             return WindowDigester(rows.digester, geometry);
           }),
           "rows"_a, "geometry"_a, py::keep_alive<1, 2>())
      .def(
          "digest_all",
          [](const WindowDigester& self, const std::vector<Given>& windows) {
            const py::gil_scoped_release others_may_run;
            std::vector<std::uint64_t> digests;
            digests.reserve(windows.size());
            for (const Given& window : windows) digests.push_back(self.digest(places_of(window)));
            return digests;
          },
          "windows"_a);
}

}  // namespace tasuki::digest
