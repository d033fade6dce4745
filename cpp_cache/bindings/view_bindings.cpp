#include "bindings/view_bindings.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "bindings/token_array.h"
#include "core/errors.h"

namespace py = pybind11;
using namespace py::literals;

namespace tasuki::cache {

namespace {

using PlainName = std::pair<std::int32_t, std::uint64_t>;

// Python holds it, and iterates without a copy of each node.
struct HeldView {
  std::shared_ptr<const TreeView> nodes;
};

// Pack a view for pycache/packed.py: a row per node. Optional values are 1 + the value, or 0.
py::array_t<std::uint64_t> packed(const HeldView& view) {
  constexpr py::ssize_t kNumbers = 18;
  py::array_t<std::uint64_t> rows({static_cast<py::ssize_t>(view.nodes->size()), kNumbers});
  std::uint64_t* row = rows.mutable_data();
  const auto put = [&row](auto value) { *row++ = static_cast<std::uint64_t>(value); };
  for (const ViewedNode& node : *view.nodes) {
    put(node.name ? 1 + static_cast<std::uint64_t>(raw(node.name->node)) : 0);
    put(node.name ? node.name->serial : 0);
    put(node.above ? 1 + static_cast<std::uint64_t>(*node.above) : 0);
    put(node.depth);
    put(node.tokens);
    put(node.children);
    put(node.state ? 1 + static_cast<std::uint64_t>(*node.state) : 0);
    put(node.tails);
    put(node.allocations);
    put(node.state_pins);
    put(node.is_protected);
    put(node.unused);
    for (const Standing& standing : {node.standing, node.hidden}) {
      put(standing.tokens);
      put(standing.nodes);
      put(standing.states);
    }
  }
  return rows;
}

std::optional<PlainName> plain(const std::optional<NodeName>& name) {
  if (!name) return std::nullopt;
  return PlainName{raw(name->node), name->serial};
}

void bind_values(py::module_& module, const CheckpointKinds& kinds) {
  py::class_<Standing>(module, "Standing")
      .def_readonly("tokens", &Standing::tokens)
      .def_readonly("nodes", &Standing::nodes)
      .def_readonly("states", &Standing::states);

  py::class_<ViewedNode>(module, "ViewedNode")
      .def_property_readonly("name", [](const ViewedNode& node) { return plain(node.name); })
      .def_readonly("above", &ViewedNode::above)
      .def_readonly("depth", &ViewedNode::depth)
      .def_readonly("tokens", &ViewedNode::tokens)
      .def_readonly("children", &ViewedNode::children)
      .def_property_readonly("state",
                             [kinds](const ViewedNode& node) { return kinds.of(node.state); })
      .def_readonly("tails", &ViewedNode::tails)
      .def_readonly("allocations", &ViewedNode::allocations)
      .def_readonly("state_pins", &ViewedNode::state_pins)
      .def_readonly("is_protected", &ViewedNode::is_protected)
      .def_readonly("unused", &ViewedNode::unused)
      .def_readonly("standing", &ViewedNode::standing)
      .def_readonly("hidden", &ViewedNode::hidden);

  py::class_<HeldState>(module, "HeldState")
      .def_property_readonly("name",
                             [](const HeldState& state) {
                               std::optional<std::int64_t> tail;
                               if (state.key.tail) tail = raw(*state.key.tail);
                               return py::make_tuple(raw(state.key.node), tail, state.serial);
                             })
      .def_readonly("boundary", &HeldState::boundary)
      .def_readonly("awaited", &HeldState::awaited)
      .def_readonly("value", &HeldState::value);

  py::class_<HeldView>(module, "TreeView")
      .def("packed", &packed)
      .def("__len__", [](const HeldView& view) { return view.nodes->size(); })
      .def(
          "__iter__",
          [](const HeldView& view) {
            return py::make_iterator<py::return_value_policy::copy>(view.nodes->begin(),
                                                                    view.nodes->end());
          },
          py::keep_alive<0, 1>());
}

}  // namespace

void bind_views(py::module_& module, CacheClass& cache, const CheckpointKinds& kinds) {
  bind_values(module, kinds);
  cache
      .def(
          "view",
          [](PrefixCache& self, std::int64_t limit,
             const std::optional<PlainName>& under) -> std::optional<HeldView> {
            std::optional<NodeName> top;
            if (under) top = NodeName{static_cast<NodeId>(under->first), under->second};
            auto view = self.view(top, limit);
            if (!view) return std::nullopt;
            return HeldView{std::make_shared<const TreeView>(*std::move(view))};
          },
          "limit"_a, "under"_a = py::none())
      .def(
          "node_at",
          [](const PrefixCache& self, const py::object& tokens, const std::string& salt) {
            return plain(self.node_at(tokens_of(tokens), salt));
          },
          "tokens"_a, "salt"_a = py::bytes())
      .def("most_valuable", &PrefixCache::most_valuable, "limit"_a)
      .def(
          "path_to",
          [](const PrefixCache& self, const HeldState& state) -> py::object {
            const auto path = self.path_to(state);
            if (!path) return py::none();
            const auto size = static_cast<py::ssize_t>(path->tokens.size());
            return py::make_tuple(py::bytes(path->salt),
                                  py::array_t<Token>(size, path->tokens.data()));
          },
          "state"_a);
}

}  // namespace tasuki::cache
