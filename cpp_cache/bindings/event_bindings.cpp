#include "bindings/event_bindings.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bindings/token_array.h"
#include "core/errors.h"
#include "fleet/fleet_index.h"

namespace py = pybind11;
using namespace py::literals;

namespace tasuki::cache {

namespace {

py::bytes bytes_of(const PrefixHash& hash) {
  const auto bytes = hash.bytes();
  return {bytes.data(), bytes.size()};
}

// Pack events for pycache/packed.py: a row of numbers per event, then three names each, then the
// tokens of the pages. A row has the sequence, kind, 1 + the checkpoint's kind or 0, tokens, place,
// and tokens of the page.
py::tuple packed(const EventBatch& batch) {
  constexpr py::ssize_t kNumbers = 6;
  std::size_t page_tokens = 0;
  for (const CacheEvent& event : batch.events) page_tokens += event.page.size();
  const auto events = static_cast<py::ssize_t>(batch.events.size());
  py::array_t<std::uint64_t> numbers({events, kNumbers});
  py::array_t<Token> pages(static_cast<py::ssize_t>(page_tokens));
  std::string names;
  names.reserve(batch.events.size() * 3 * sizeof(PrefixHash));
  std::uint64_t* row = numbers.mutable_data();
  Token* page = pages.mutable_data();
  for (const CacheEvent& event : batch.events) {
    *row++ = event.sequence;
    *row++ = static_cast<std::uint64_t>(event.kind);
    *row++ = event.checkpoint ? 1 + static_cast<std::uint64_t>(*event.checkpoint) : 0;
    *row++ = static_cast<std::uint64_t>(event.tokens);
    *row++ = event.place;
    *row++ = event.page.size();
    for (const PrefixHash& hash : {event.prefix, event.parent, event.root}) {
      const auto bytes = hash.bytes();
      names.append(bytes.data(), bytes.size());
    }
    page = std::copy(event.page.begin(), event.page.end(), page);
  }
  return py::make_tuple(numbers, py::bytes(names), pages);
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
      .def_readonly("place", &CacheEvent::place)
      .def_readonly("page", &CacheEvent::page)
      .def_property_readonly("prefix", hash_or_none(&CacheEvent::prefix))
      .def_property_readonly("parent", hash_or_none(&CacheEvent::parent))
      .def_property_readonly("namespace", hash_or_none(&CacheEvent::root));

  py::class_<EventBatch>(module, "EventBatch")
      .def_readonly("sequence", &EventBatch::sequence)
      .def_readonly("is_snapshot", &EventBatch::is_snapshot)
      .def_readonly("gap", &EventBatch::gap)
      .def("packed", &packed)
      .def("__len__", [](const EventBatch& batch) { return batch.events.size(); })
      .def(
          "__iter__",
          [](const EventBatch& batch) {
            return py::make_iterator<py::return_value_policy::copy>(batch.events.begin(),
                                                                    batch.events.end());
          },
          py::keep_alive<0, 1>());
}

PrefixHash hash_of(const py::bytes& bytes) {
  const auto view = static_cast<std::string_view>(bytes);
  PrefixHash hash;
  if (view.size() != sizeof hash) throw InvalidArgument("a prefix has a name of 16 bytes");
  std::memcpy(&hash.low, view.data(), 8);
  std::memcpy(&hash.high, view.data() + 8, 8);
  return hash;
}

// Throws InvalidArgument.
FleetNode fleet_node_of(std::int64_t number) {
  if (number < 0 || number > UINT16_MAX) throw InvalidArgument("nodes are numbered up to 65535");
  return static_cast<FleetNode>(number);
}

void bind_fleet_index(py::module_& module) {
  using Change =
      void (FleetIndex::*)(FleetNode, const PrefixHash&, const PrefixHash&, std::int64_t);
  const auto change = [](Change apply) {
    return [apply](FleetIndex& self, std::int64_t node, const py::bytes& prefix,
                   const py::bytes& parent, std::int64_t tokens) {
      if (tokens < 0) throw InvalidArgument("a prefix has no fewer than 0 tokens");
      (self.*apply)(fleet_node_of(node), hash_of(prefix), hash_of(parent), tokens);
    };
  };
  py::class_<FleetIndex>(module, "FleetIndex")
      .def(py::init<>())
      .def("store", change(&FleetIndex::store), "node"_a, "prefix"_a, "parent"_a, "tokens"_a)
      .def("remove", change(&FleetIndex::remove), "node"_a, "prefix"_a, "parent"_a, "tokens"_a)
      .def(
          "forget", [](FleetIndex& self, std::int64_t node) { self.forget(fleet_node_of(node)); },
          "node"_a)
      .def(
          "holders",
          [](const FleetIndex& self, const py::object& prompt, const std::string& salt,
             std::size_t enough, std::uint64_t seed) {
            std::vector<std::pair<std::int64_t, std::int64_t>> found;
            for (const Holder& holder : self.holders(tokens_of(prompt), salt, enough, seed))
              found.emplace_back(static_cast<std::int64_t>(holder.node), holder.tokens);
            return found;
          },
          "prompt"_a, "salt"_a, "enough"_a, "seed"_a)
      .def(
          "look_up",
          [](const FleetIndex& self, const py::object& prompt, const std::string& salt,
             std::size_t enough, std::uint64_t seed) {
            const LookUp found = self.look_up(tokens_of(prompt), salt, enough, seed);
            std::vector<std::pair<std::int64_t, std::int64_t>> holders;
            for (const Holder& holder : found.holders)
              holders.emplace_back(static_cast<std::int64_t>(holder.node), holder.tokens);
            std::vector<std::pair<std::int64_t, std::uint64_t>> beginnings;
            for (const Beginning& beginning : found.beginnings)
              beginnings.emplace_back(beginning.tokens, beginning.name);
            return std::make_pair(holders, beginnings);
          },
          "prompt"_a, "salt"_a, "enough"_a, "seed"_a)
      .def("__len__", &FleetIndex::checkpoints);
}

EventStream stream_of(const std::string& name) {
  if (const auto stream = stream_named(name)) return *stream;
  throw InvalidArgument("stream must be all, usable or spelled, not " + name);
}

}  // namespace

void bind_events(py::module_& module, CacheClass& cache, const CheckpointKinds& kinds) {
  bind_values(module, kinds);
  bind_fleet_index(module);
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
