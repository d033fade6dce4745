#include "bindings/event_bindings.h"

#include <pybind11/stl.h>

#include <string>
#include <string_view>
#include <vector>

#include "bindings/token_array.h"
#include "core/errors.h"

namespace py = pybind11;
using namespace py::literals;

namespace tasuki::cache {

namespace {

py::bytes bytes_of(const PrefixHash& hash) {
  const auto bytes = hash.bytes();
  return {bytes.data(), bytes.size()};
}

std::vector<py::bytes> prefix_hashes(const py::object& object, const std::string& salt) {
  const Tokens tokens = tokens_of(object);
  const PrefixHasher hasher(salt);
  const std::size_t whole = tokens.size() / kPageTokens * kPageTokens;
  std::vector<py::bytes> hashes{bytes_of(hasher.root())};
  PrefixHash end = hasher.over(
      hasher.root(), tokens.first(whole),
      [&](const PrefixHash&, const PrefixHash& prefix) { hashes.push_back(bytes_of(prefix)); });
  if (whole < tokens.size()) hashes.push_back(bytes_of(hasher.next(end, tokens.subspan(whole))));
  return hashes;
}

void bind_values(py::module_& module, const CheckpointKinds& kinds) {
  py::class_<EventGap>(module, "EventGap")
      .def_readonly("first_lost", &EventGap::first_lost)
      .def_readonly("resync_from", &EventGap::resync_from);

  const auto hash_or_none = [](PrefixHash CacheEvent::* hash) {
    return [hash](const CacheEvent& event) -> py::object {
      if (event.kind == EventKind::kCleared) return py::none();
      return bytes_of(event.*hash);
    };
  };
  py::class_<CacheEvent>(module, "CacheEvent")
      .def_readonly("sequence", &CacheEvent::sequence)
      .def_property_readonly(
          "kind", [](const CacheEvent& event) { return std::string(name_of(event.kind)); })
      .def_property_readonly(
          "checkpoint_kind",
          [kinds](const CacheEvent& event) { return kinds.of(event.checkpoint); })
      .def_readonly("tokens", &CacheEvent::tokens)
      .def_readonly("page", &CacheEvent::page)
      .def_property_readonly("prefix", hash_or_none(&CacheEvent::prefix))
      .def_property_readonly("parent", hash_or_none(&CacheEvent::parent))
      .def_property_readonly("namespace", hash_or_none(&CacheEvent::root));

  py::class_<EventBatch>(module, "EventBatch")
      .def_readonly("sequence", &EventBatch::sequence)
      .def_readonly("is_snapshot", &EventBatch::is_snapshot)
      .def_readonly("gap", &EventBatch::gap)
      .def("__len__", [](const EventBatch& batch) { return batch.events.size(); })
      .def(
          "__iter__",
          [](const EventBatch& batch) {
            return py::make_iterator<py::return_value_policy::copy>(batch.events.begin(),
                                                                    batch.events.end());
          },
          py::keep_alive<0, 1>());
}

EventStream stream_of(const std::string& name) {
  if (const auto stream = stream_named(name)) return *stream;
  throw InvalidArgument("stream must be all, usable or spelled, not " + name);
}

}  // namespace

void bind_events(py::module_& module, CacheClass& cache, const CheckpointKinds& kinds) {
  bind_values(module, kinds);
  module.def("prefix_hashes", &prefix_hashes, "tokens"_a, "salt"_a = py::bytes());
  cache
      .def(
          "watch",
          [](PrefixCache& self, const std::string& stream, std::int64_t capacity) {
            return raw(self.journal().open(stream_of(stream), capacity));
          },
          "stream"_a = "usable", "capacity"_a = 65536)
      .def(
          "drain_events",
          [](PrefixCache& self, std::int64_t watch) {
            return self.journal().drain(static_cast<WatchId>(watch));
          },
          "watch"_a)
      .def(
          "unwatch",
          [](PrefixCache& self, std::int64_t watch) {
            self.journal().close(static_cast<WatchId>(watch));
          },
          "watch"_a);
}

}  // namespace tasuki::cache
