// The Python face of HybridTree: pycache/_cpp_cache.pyi is its contract. Validates, converts,
// decides nothing. The module's other classes are bound in files of their own.
//
// Token arrays are read in place and never kept; page arrays are handed out read-only.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cpp_cache/errors.h"
#include "cpp_cache/hybrid_tree.h"
#include "digest_bindings.h"
#include "event_bindings.h"
#include "eviction_bindings.h"
#include "token_array.h"
#include "view_bindings.h"

namespace py = pybind11;
using namespace py::literals;

namespace tasuki::cache {
namespace {

using TreePtr = std::shared_ptr<HybridTree>;
using OptionalInt = std::optional<std::int64_t>;

// What Python holds of a lease. Outlives it: id, generation and match stay readable after release.
struct LeaseHandle {
  TreePtr tree;
  LeaseId id;
  std::int64_t generation;
  Match match;
  py::object pages;  // array over the first pages_seen entries; pages only grow
  std::size_t pages_seen = 0;

  const Lease& get() const { return tree->lease_of(id); }
};

LeaseId lease_id(const TreePtr& tree, const LeaseHandle& handle) {
  if (handle.tree != tree) throw InvalidArgument("the lease was cut from another tree");
  return handle.id;
}

std::optional<CursorId> cursor_id(OptionalInt cursor) {
  if (!cursor) return std::nullopt;
  return static_cast<CursorId>(*cursor);
}

std::optional<LeaseHandle> handle_of(const TreePtr& tree, std::optional<LeaseId> id) {
  if (!id) return std::nullopt;
  const Lease& lease = tree->lease_of(*id);
  return LeaseHandle{tree, *id, lease.generation, lease.match, py::none()};
}

py::object pages_of(LeaseHandle& handle) {
  const Lease& lease = handle.get();
  if (handle.pages.is_none() || handle.pages_seen != lease.pages.size()) {
    py::array_t<std::int32_t> array(static_cast<py::ssize_t>(lease.pages.size()));
    static_assert(sizeof(PageId) == sizeof(std::int32_t));
    std::memcpy(array.mutable_data(), lease.pages.data(), lease.pages.size() * sizeof(PageId));
    array.attr("flags").attr("writeable") = false;
    handle.pages = array;
    handle.pages_seen = lease.pages.size();
  }
  return handle.pages;
}

std::vector<std::int32_t> raw_slots(const std::vector<SlotId>& slots) {
  std::vector<std::int32_t> out;
  for (const SlotId slot : slots) out.push_back(raw(slot));
  return out;
}

py::dict causes_dict(const Causes& causes) {
  return py::dict("new"_a = causes.fresh, "never_checkpointed"_a = causes.never_checkpointed,
                  "checkpoint_evicted"_a = causes.checkpoint_evicted,
                  "kv_evicted"_a = causes.kv_evicted, "alignment"_a = causes.alignment,
                  "in_flight"_a = causes.in_flight);
}

constexpr std::pair<const char*, CheckpointKind> kKinds[] = {
    {"PROMPT_END", CheckpointKind::kPromptEnd}, {"TURN_END", CheckpointKind::kTurnEnd},
    {"BRANCH", CheckpointKind::kBranch},        {"MARK", CheckpointKind::kMark},
    {"INTERIOR", CheckpointKind::kInterior},
};

py::object kind_or_none(const py::object& kinds, const std::optional<CheckpointKind>& kind) {
  if (!kind) return py::none();
  return kinds[kKinds[static_cast<int>(*kind)].first];
}

// A true enum.Enum, which py::enum_ is not.
py::object make_kinds(const py::module_& module) {
  py::list members;
  for (const auto& [name, kind] : kKinds) {
    members.append(py::make_tuple(name, py::str(name).attr("lower")()));
  }
  return py::module_::import("enum").attr("Enum")("CheckpointKind", members,
                                                  "module"_a = module.attr("__name__"));
}

// Members are singletons: comparing addresses is all it takes.
using KindMembers = std::vector<std::pair<py::object, CheckpointKind>>;

KindMembers members_of(const py::object& kinds) {
  KindMembers members;
  for (const auto& [name, kind] : kKinds) members.emplace_back(kinds[name], kind);
  return members;
}

CheckpointKind kind_of(const KindMembers& members, const py::object& kind) {
  for (const auto& [member, value] : members) {
    if (kind.is(member)) return value;
  }
  throw InvalidArgument("kind must be a CheckpointKind");
}

TurnHint hint_of(const std::string& name) {
  if (name == "unknown") return TurnHint::kUnknown;
  if (name == "tool_call") return TurnHint::kToolCall;
  if (name == "end_of_turn") return TurnHint::kEndOfTurn;
  throw InvalidArgument("hint must be unknown, tool_call or end_of_turn, not " + name);
}

void bind_errors(py::module_& module) {
  const auto base = py::register_exception<CacheError>(module, "CacheError");
  py::register_exception<ImpossibleRequest>(module, "ImpossibleRequest", base);
  py::register_exception<InvalidArgument>(module, "InvalidArgument", base);
  py::register_exception<IntegrityError>(module, "IntegrityError", base);
}

void bind_values(py::module_& module, const py::object& kinds) {
  py::class_<TreeConfig>(module, "TreeConfig")
      .def(py::init([](std::int64_t slabs, std::int64_t blocks, std::int64_t pages,
                       std::int64_t ghosts, const std::string& policy, double attention_cost) {
             const auto kind = policy_named(policy);
             if (!kind) {
               throw InvalidArgument("policy must be lru, value, auto or marconi, not " + policy);
             }
             const TreeConfig config{slabs, blocks, pages, ghosts, *kind, attention_cost};
             config.validate();
             return config;
           }),
           py::kw_only(), "slabs"_a, "blocks_per_slab"_a, "pages_per_slab"_a,
           "max_ghost_nodes"_a = 4096, "policy"_a = "lru", "attention_cost"_a = 0.0)
      .def_readonly("slabs", &TreeConfig::slabs)
      .def_readonly("blocks_per_slab", &TreeConfig::blocks_per_slab)
      .def_readonly("pages_per_slab", &TreeConfig::pages_per_slab)
      .def_readonly("max_ghost_nodes", &TreeConfig::max_ghost_nodes)
      .def_property_readonly(
          "policy", [](const TreeConfig& config) { return std::string(name_of(config.policy)); })
      .def_readonly("attention_cost", &TreeConfig::attention_cost);

  py::class_<Causes>(module, "Causes")
      .def_readonly("new", &Causes::fresh)
      .def_readonly("never_checkpointed", &Causes::never_checkpointed)
      .def_readonly("checkpoint_evicted", &Causes::checkpoint_evicted)
      .def_readonly("kv_evicted", &Causes::kv_evicted)
      .def_readonly("alignment", &Causes::alignment)
      .def_readonly("in_flight", &Causes::in_flight)
      .def("as_dict", &causes_dict);

  py::class_<LostState>(module, "LostState")
      .def_readonly("eviction", &LostState::eviction)
      .def_readonly("boundary", &LostState::boundary)
      .def_readonly("pages_since", &LostState::pages_since);

  py::class_<PageMatch>(module, "PageMatch")
      .def_readonly("kv_tokens", &PageMatch::kv_tokens)
      .def_readonly("usable_tokens", &PageMatch::usable_tokens)
      .def_property_readonly(
          "checkpoint_kind",
          [kinds](const PageMatch& match) { return kind_or_none(kinds, match.checkpoint_kind); })
      .def_readonly("causes", &PageMatch::causes);

  py::class_<Match>(module, "Match")
      .def_readonly("prompt_tokens", &Match::prompt_tokens)
      .def_readonly("kv_tokens", &Match::kv_tokens)
      .def_readonly("usable_tokens", &Match::usable_tokens)
      .def_property_readonly(
          "checkpoint_kind",
          [kinds](const Match& match) { return kind_or_none(kinds, match.checkpoint_kind); })
      .def_readonly("branch_tokens", &Match::branch_tokens)
      .def_readonly("causes", &Match::causes)
      .def_readonly("in_pages", &Match::in_pages)
      .def_readonly("lost", &Match::lost)
      .def_readonly("interior_tokens", &Match::interior_tokens);

  py::class_<PoolCounts>(module, "PoolCounts")
      .def_readonly("free", &PoolCounts::free)
      .def_readonly("working", &PoolCounts::working)
      .def_readonly("tree", &PoolCounts::tree)
      .def_readonly("granted", &PoolCounts::granted)
      .def_readonly("quarantined", &PoolCounts::quarantined)
      .def_readonly("total", &PoolCounts::total)
      .def_readonly("pinned", &PoolCounts::pinned);

  py::class_<TreeStats>(module, "TreeStats")
      .def_readonly("pages", &TreeStats::pages)
      .def_readonly("slots", &TreeStats::slots)
      .def_readonly("slabs_free", &TreeStats::slabs_free)
      .def_readonly("slabs_of_pages", &TreeStats::slabs_of_pages)
      .def_readonly("slabs_of_slots", &TreeStats::slabs_of_slots)
      .def_readonly("slabs_total", &TreeStats::slabs_total)
      .def_readonly("nodes", &TreeStats::nodes)
      .def_readonly("ghost_nodes", &TreeStats::ghost_nodes)
      .def_readonly("checkpoints", &TreeStats::checkpoints)
      .def_readonly("leases", &TreeStats::leases)
      .def_readonly("cursors", &TreeStats::cursors)
      .def_readonly("evicted_pages", &TreeStats::evicted_pages)
      .def_readonly("evicted_checkpoints", &TreeStats::evicted_checkpoints)
      .def_readonly("leased_requests", &TreeStats::leased_requests)
      .def_readonly("prompt_tokens", &TreeStats::prompt_tokens)
      .def_readonly("usable_tokens", &TreeStats::usable_tokens)
      .def_readonly("lost", &TreeStats::lost)
      .def_property_readonly("policies", [](const TreeStats& stats) {
        py::dict out;
        for (const auto& [policy, saved] : stats.policies) {
          out[py::str(std::string(name_of(policy)))] = saved;
        }
        return out;
      });
}

void bind_lease(py::module_& module) {
  py::class_<LeaseHandle>(module, "Lease")
      .def_property_readonly("id", [](const LeaseHandle& lease) { return raw(lease.id); })
      .def_readonly("generation", &LeaseHandle::generation)
      .def_readonly("match", &LeaseHandle::match)
      .def_property_readonly("cached_tokens",
                             [](const LeaseHandle& lease) { return lease.get().cached_tokens; })
      .def_property_readonly("cow_source_slot",
                             [](const LeaseHandle& lease) -> std::optional<std::int32_t> {
                               const auto slot = lease.get().cow_source_slot;
                               if (!slot) return std::nullopt;
                               return raw(*slot);
                             })
      .def_property_readonly(
          "tail_copy",
          [](const LeaseHandle& lease) -> std::optional<std::pair<std::int32_t, std::int32_t>> {
            const auto& copy = lease.get().tail_copy;
            if (!copy) return std::nullopt;
            return std::pair(raw(copy->first), raw(copy->second));
          })
      .def_property_readonly("source_page",
                             [](const LeaseHandle& lease) -> std::optional<std::int32_t> {
                               const auto page = lease.get().source_page;
                               if (!page) return std::nullopt;
                               return raw(*page);
                             })
      .def_property_readonly("shared_pages",
                             [](const LeaseHandle& lease) { return lease.get().shared_pages; })
      .def_property_readonly("pages", &pages_of)
      .def_property_readonly(
          "working_slots",
          [](const LeaseHandle& lease) { return raw_slots(lease.get().working_slots); })
      .def_property_readonly("tokens",
                             [](const LeaseHandle& lease) { return lease.get().tokens(); })
      .def_property_readonly("capacity_tokens", [](const LeaseHandle& lease) {
        return lease.get().capacity_tokens();
      });
}

void bind_asking(py::class_<HybridTree, TreePtr>& tree) {
  tree.def(py::init<const TreeConfig&>(), "config"_a)
      .def_property_readonly("config", &HybridTree::config)
      .def(
          "match",
          [](const HybridTree& self, const py::object& tokens, const std::string& salt,
             OptionalInt cursor) { return self.match(tokens_of(tokens), salt, cursor_id(cursor)); },
          "tokens"_a, "salt"_a = py::bytes(), "cursor"_a = py::none())
      .def("capacity_tokens", &HybridTree::capacity_tokens, "working_slots"_a)
      .def("stats", &HybridTree::stats)
      .def_property_readonly("room_version", &HybridTree::room_version)
      .def("check_integrity", &HybridTree::check_integrity)
      .def(
          "open_cursor",
          [](HybridTree& self, const std::string& salt) { return raw(self.open_cursor(salt)); },
          "salt"_a = py::bytes())
      .def(
          "fork_cursor",
          [](HybridTree& self, std::int64_t cursor) {
            return raw(self.fork_cursor(static_cast<CursorId>(cursor)));
          },
          "cursor"_a)
      .def(
          "close_cursor",
          [](HybridTree& self, std::int64_t cursor) {
            self.close_cursor(static_cast<CursorId>(cursor));
          },
          "cursor"_a);
}

void bind_leasing(py::class_<HybridTree, TreePtr>& tree) {
  tree.def(
          "lease",
          [](const TreePtr& self, const py::object& tokens, const std::string& salt,
             std::int64_t capacity_tokens, std::int64_t working_slots, OptionalInt cursor) {
            const LeaseTerms terms{capacity_tokens, working_slots, cursor_id(cursor)};
            return handle_of(self, self->lease(tokens_of(tokens), salt, terms));
          },
          "tokens"_a, py::kw_only(), "salt"_a = py::bytes(), "capacity_tokens"_a, "working_slots"_a,
          "cursor"_a = py::none())
      .def(
          "lease_receive",
          [](const TreePtr& self, const py::object& tokens, const std::string& salt,
             std::int64_t capacity_tokens, std::int64_t working_slots, OptionalInt cursor) {
            const LeaseTerms terms{capacity_tokens, working_slots, cursor_id(cursor)};
            return handle_of(self, self->lease_receive(tokens_of(tokens), salt, terms));
          },
          "tokens"_a, py::kw_only(), "salt"_a = py::bytes(), "capacity_tokens"_a, "working_slots"_a,
          "cursor"_a = py::none())
      .def(
          "lease_to_send",
          [](const TreePtr& self, const py::object& tokens, const std::string& salt) {
            return handle_of(self, self->lease_to_send(tokens_of(tokens), salt));
          },
          "tokens"_a, py::kw_only(), "salt"_a = py::bytes())
      .def(
          "extend",
          [](const TreePtr& self, const LeaseHandle& lease, std::int64_t capacity_tokens) {
            return self->extend(lease_id(self, lease), capacity_tokens);
          },
          "lease"_a, "capacity_tokens"_a)
      .def(
          "append",
          [](const TreePtr& self, const LeaseHandle& lease, const py::object& tokens) {
            self->append(lease_id(self, lease), tokens_of(tokens));
          },
          "lease"_a, "tokens"_a)
      .def(
          "take_checkpoint_slot",
          [](const TreePtr& self, const LeaseHandle& lease) -> std::optional<std::int32_t> {
            const auto slot = self->take_checkpoint_slot(lease_id(self, lease));
            if (!slot) return std::nullopt;
            return raw(*slot);
          },
          "lease"_a)
      .def(
          "release",
          [](const TreePtr& self, const LeaseHandle& lease) {
            self->release(lease_id(self, lease));
          },
          "lease"_a)
      .def_property_readonly(
          "policy", [](const HybridTree& self) { return std::string(name_of(self.policy())); })
      .def("advance_to", &HybridTree::advance_to, "now_ms"_a)
      .def("drain_moves",
           [](HybridTree& self) {
             std::vector<std::pair<std::int32_t, std::int32_t>> out;
             for (const auto& [from, to] : self.drain_moves()) out.emplace_back(raw(from), raw(to));
             return out;
           })
      .def("drain_evictions", &HybridTree::drain_evictions)
      .def("flush", &HybridTree::flush);
}

void bind_handing_over(py::class_<HybridTree, TreePtr>& tree, const py::object& kinds) {
  tree.def(
          "publish",
          [members = members_of(kinds)](const TreePtr& self, const LeaseHandle& lease,
                                        std::int64_t boundary, std::optional<std::int32_t> slot,
                                        const py::object& kind, const std::string& hint) {
            std::optional<SlotId> id;
            if (slot) id = static_cast<SlotId>(*slot);
            self->publish(lease_id(self, lease), boundary, id, kind_of(members, kind),
                          hint_of(hint));
          },
          "lease"_a, "boundary"_a, "slot"_a, "kind"_a, "hint"_a = "unknown")
      .def(
          "grant",
          [](const TreePtr& self, const LeaseHandle& lease) { self->grant(lease_id(self, lease)); },
          "lease"_a)
      .def(
          "settle",
          [](const TreePtr& self, const LeaseHandle& lease) {
            self->settle(lease_id(self, lease));
          },
          "lease"_a)
      .def(
          "quarantine",
          [](const TreePtr& self, const LeaseHandle& lease) {
            return raw(self->quarantine(lease_id(self, lease)));
          },
          "lease"_a)
      .def(
          "free_quarantined",
          [](HybridTree& self, std::int64_t quarantine) {
            self.free_quarantined(static_cast<QuarantineId>(quarantine));
          },
          "quarantine"_a);
}

}  // namespace
}  // namespace tasuki::cache

PYBIND11_MODULE(_cpp_cache, module) {
  using namespace tasuki::cache;
  module.attr("PAGE_TOKENS") = kPageTokens;
  const py::object kinds = make_kinds(module);
  module.attr("CheckpointKind") = kinds;
  bind_errors(module);
  bind_values(module, kinds);
  bind_lease(module);
  py::class_<HybridTree, TreePtr> tree(module, "HybridTree");
  bind_asking(tree);
  bind_leasing(tree);
  bind_handing_over(tree, kinds);
  bind_events(module, tree, kinds);
  bind_evictions(module, kinds);
  bind_views(module, tree, kinds);
  tasuki::digest::bind_digests(module);
}
