#include "bindings/cache_bindings.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/token_array.h"
#include "cache/factory.h"
#include "core/errors.h"

namespace py = pybind11;
using namespace py::literals;

namespace tasuki::cache {

namespace {

using OptionalInt = std::optional<std::int64_t>;

std::optional<CursorId> cursor_id(OptionalInt cursor) {
  if (!cursor) return std::nullopt;
  return static_cast<CursorId>(*cursor);
}

TurnHint hint_of(const std::string& name) {
  if (name == "unknown") return TurnHint::kUnknown;
  if (name == "tool_call") return TurnHint::kToolCall;
  if (name == "end_of_turn") return TurnHint::kEndOfTurn;
  throw InvalidArgument("hint must be unknown, tool_call or end_of_turn, not " + name);
}

void bind_asking(CacheClass& cache) {
  cache
      .def(py::init([](const CacheConfig& config) {
             return CachePtr(new PrefixCache(make_prefix_cache(config)));
           }),
           "config"_a)
      .def_property_readonly("config", &PrefixCache::config)
      .def(
          "match",
          [](const PrefixCache& self, const py::object& tokens, const std::string& salt,
             OptionalInt cursor) { return self.match(tokens_of(tokens), salt, cursor_id(cursor)); },
          "tokens"_a, "salt"_a = py::bytes(), "cursor"_a = py::none())
      .def("capacity_tokens", &PrefixCache::capacity_tokens, "working_slots"_a)
      .def("stats", &PrefixCache::stats)
      .def_property_readonly("room_version", &PrefixCache::room_version)
      .def("check_integrity", &PrefixCache::check_integrity)
      .def(
          "open_cursor",
          [](PrefixCache& self, const std::string& salt) { return raw(self.open_cursor(salt)); },
          "salt"_a = py::bytes())
      .def(
          "fork_cursor",
          [](PrefixCache& self, std::int64_t cursor) {
            return raw(self.fork_cursor(static_cast<CursorId>(cursor)));
          },
          "cursor"_a)
      .def(
          "close_cursor",
          [](PrefixCache& self, std::int64_t cursor) {
            self.close_cursor(static_cast<CursorId>(cursor));
          },
          "cursor"_a);
}

void bind_allocating(CacheClass& cache) {
  cache
      .def(
          "allocate",
          [](const CachePtr& self, const py::object& tokens, const std::string& salt,
             std::int64_t capacity_tokens, std::int64_t working_slots, OptionalInt cursor) {
            const AllocationTerms terms{capacity_tokens, working_slots, cursor_id(cursor)};
            return handle_of(self, self->allocate(tokens_of(tokens), salt, terms));
          },
          "tokens"_a, py::kw_only(), "salt"_a = py::bytes(), "capacity_tokens"_a, "working_slots"_a,
          "cursor"_a = py::none())
      .def(
          "allocate_or_load",
          [](const CachePtr& self, const py::object& tokens, const std::string& salt,
             std::int64_t capacity_tokens, std::int64_t working_slots, OptionalInt cursor,
             double load_wait) {
            const AllocationTerms terms{capacity_tokens, working_slots, cursor_id(cursor),
                                        load_wait};
            return handle_of(self, self->allocate(tokens_of(tokens), salt, terms));
          },
          "tokens"_a, py::kw_only(), "salt"_a = py::bytes(), "capacity_tokens"_a, "working_slots"_a,
          "cursor"_a = py::none(), "load_wait"_a = 0.0)
      .def(
          "allocate_to_receive",
          [](const CachePtr& self, const py::object& tokens, const std::string& salt,
             std::int64_t capacity_tokens, std::int64_t working_slots, OptionalInt cursor) {
            const AllocationTerms terms{capacity_tokens, working_slots, cursor_id(cursor)};
            return handle_of(self, self->allocate_to_receive(tokens_of(tokens), salt, terms));
          },
          "tokens"_a, py::kw_only(), "salt"_a = py::bytes(), "capacity_tokens"_a, "working_slots"_a,
          "cursor"_a = py::none())
      .def(
          "allocate_to_send",
          [](const CachePtr& self, const py::object& tokens, const std::string& salt) {
            return handle_of(self, self->allocate_to_send(tokens_of(tokens), salt));
          },
          "tokens"_a, py::kw_only(), "salt"_a = py::bytes())
      .def(
          "extend",
          [](const CachePtr& self, const AllocationHandle& handle, std::int64_t capacity_tokens) {
            return self->extend(id_in(self, handle), capacity_tokens);
          },
          "allocation"_a, "capacity_tokens"_a)
      .def(
          "append",
          [](const CachePtr& self, const AllocationHandle& handle, const py::object& tokens) {
            self->append(id_in(self, handle), tokens_of(tokens));
          },
          "allocation"_a, "tokens"_a)
      .def(
          "take_checkpoint_slot",
          [](const CachePtr& self, const AllocationHandle& handle) -> std::optional<std::int32_t> {
            const auto slot = self->take_checkpoint_slot(id_in(self, handle));
            if (!slot) return std::nullopt;
            return raw(*slot);
          },
          "allocation"_a)
      .def(
          "release",
          [](const CachePtr& self, AllocationHandle& handle) {
            const AllocationId id = id_in(self, handle);
            const bool has_loaded = handle.loads && !self->allocation(id).load;
            if (has_loaded) handle.match = self->allocation(id).match;
            self->release(id);
            handle.loads = false;
          },
          "allocation"_a)
      .def_property_readonly(
          "policy", [](const PrefixCache& self) { return std::string(name_of(self.policy())); })
      .def("advance_to", &PrefixCache::advance_to, "now_ms"_a)
      .def("drain_moves",
           [](PrefixCache& self) {
             std::vector<std::pair<std::int32_t, std::int32_t>> out;
             for (const auto& [from, to] : self.drain_moves()) out.emplace_back(raw(from), raw(to));
             return out;
           })
      .def("next_write", &PrefixCache::next_write)
      .def(
          "acknowledge",
          [](PrefixCache& self, std::int64_t transfer, bool is_good) {
            self.acknowledge(static_cast<TransferId>(transfer), is_good);
          },
          "transfer"_a, "is_good"_a)
      .def("drain_evictions", &PrefixCache::drain_evictions)
      .def("flush", &PrefixCache::flush);
}

void bind_handing_over(CacheClass& cache, const CheckpointKinds& kinds) {
  cache
      .def(
          "insert",
          [kinds](const CachePtr& self, const AllocationHandle& handle, std::int64_t boundary,
                  std::optional<std::int32_t> slot, const py::object& kind,
                  const std::string& hint) {
            std::optional<SlotId> id;
            if (slot) id = static_cast<SlotId>(*slot);
            self->insert(id_in(self, handle), boundary, id, kinds.value_of(kind), hint_of(hint));
          },
          "allocation"_a, "boundary"_a, "slot"_a, "kind"_a, "hint"_a = "unknown")
      .def(
          "insert_midway",
          [kinds](const CachePtr& self, const AllocationHandle& handle, std::int64_t boundary,
                  std::int32_t slot,
                  const py::object& kind) -> std::optional<std::pair<std::int32_t, std::int32_t>> {
            const auto copy = self->insert_midway(id_in(self, handle), boundary,
                                                  static_cast<SlotId>(slot), kinds.value_of(kind));
            if (!copy) return std::nullopt;
            return std::pair{raw(copy->first), raw(copy->second)};
          },
          "allocation"_a, "boundary"_a, "slot"_a, "kind"_a)
      .def(
          "grant",
          [](const CachePtr& self, const AllocationHandle& handle) {
            self->grant(id_in(self, handle));
          },
          "allocation"_a)
      .def(
          "accept_received",
          [](const CachePtr& self, const AllocationHandle& handle) {
            self->accept_received(id_in(self, handle));
          },
          "allocation"_a)
      .def(
          "quarantine",
          [](const CachePtr& self, AllocationHandle& handle) {
            const QuarantineId quarantine = self->quarantine(id_in(self, handle));
            handle.loads = false;
            return raw(quarantine);
          },
          "allocation"_a)
      .def(
          "free_quarantined",
          [](PrefixCache& self, std::int64_t quarantine) {
            self.free_quarantined(static_cast<QuarantineId>(quarantine));
          },
          "quarantine"_a);
}

// Bind the contents of a tier kept after its owner's end.
void bind_restarting(CacheClass& cache, const CheckpointKinds& kinds) {
  cache
      .def(
          "label_of",
          [kinds](const PrefixCache& self, std::int64_t write) {
            const WriteLabel label = self.label_of(static_cast<TransferId>(write));
            std::optional<std::int32_t> above;
            if (label.above) above = raw(*label.above);
            return py::make_tuple(py::bytes(label.salt), label.start, above,
                                  py::array_t<Token>(static_cast<py::ssize_t>(label.tokens.size()),
                                                     label.tokens.data()),
                                  kinds.of(label.kind));
          },
          "write"_a)
      .def(
          "restore",
          [kinds](PrefixCache& self, std::uint8_t tier, const py::object& tokens,
                  const std::string& salt, const std::vector<std::int32_t>& pages,
                  std::int32_t slot, const py::object& kind) {
            KeptState kept{
                salt, tokens_of(tokens), {}, static_cast<SlotId>(slot), kinds.value_of(kind)};
            for (const std::int32_t page : pages) kept.pages.push_back(static_cast<PageId>(page));
            return self.restore(static_cast<TierId>(tier), kept);
          },
          "tier"_a, "tokens"_a, py::kw_only(), "salt"_a, "pages"_a, "slot"_a, "kind"_a)
      .def(
          "adopt",
          [kinds](PrefixCache& self, std::uint8_t tier, const py::object& tokens,
                  const std::string& salt, const py::object& kind) {
            std::optional<std::tuple<std::vector<std::int32_t>, std::int64_t, std::int32_t>> found;
            const auto adopted = self.adopt(static_cast<TierId>(tier), salt, tokens_of(tokens),
                                            kinds.value_of(kind));
            if (!adopted) return found;
            std::vector<std::int32_t> pages;
            for (const PageId page : adopted->pages) pages.push_back(raw(page));
            found.emplace(std::move(pages), adopted->first_new, raw(adopted->slot));
            return found;
          },
          "tier"_a, "tokens"_a, py::kw_only(), "salt"_a, "kind"_a);
}

}  // namespace

CacheClass bind_cache(py::module_& module, const CheckpointKinds& kinds) {
  CacheClass cache(module, "PrefixCache");
  bind_asking(cache);
  bind_allocating(cache);
  bind_handing_over(cache, kinds);
  bind_restarting(cache, kinds);
  return cache;
}

}  // namespace tasuki::cache
