#include "bindings/value_bindings.h"

#include <pybind11/stl.h>

#include <cstdint>
#include <optional>
#include <string>

#include "cache/cache_stats.h"
#include "core/cache_config.h"
#include "core/errors.h"
#include "core/match.h"
#include "events/eviction_log.h"

namespace py = pybind11;
using namespace py::literals;

namespace tasuki::cache {

namespace {

py::dict as_dict(const MissReasons& reasons) {
  return py::dict("new"_a = reasons.fresh, "never_checkpointed"_a = reasons.never_checkpointed,
                  "checkpoint_evicted"_a = reasons.checkpoint_evicted,
                  "kv_evicted"_a = reasons.kv_evicted, "alignment"_a = reasons.alignment,
                  "in_flight"_a = reasons.in_flight);
}

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

void bind_errors(py::module_& module) {
  const auto base = py::register_exception<CacheError>(module, "CacheError");
  py::register_exception<ImpossibleRequest>(module, "ImpossibleRequest", base);
  py::register_exception<InvalidArgument>(module, "InvalidArgument", base);
  py::register_exception<IntegrityError>(module, "IntegrityError", base);
}

void bind_values(py::module_& module, const CheckpointKinds& kinds) {
  py::class_<CacheConfig>(module, "TreeConfig")
      .def(py::init([](std::int64_t slabs, std::int64_t blocks, std::int64_t pages,
                       std::int64_t ghosts, const std::string& policy, double attention_cost) {
             const auto kind = policy_named(policy);
             if (!kind) {
               throw InvalidArgument("policy must be lru, value, auto or marconi, not " + policy);
             }
             const CacheConfig config{slabs, blocks, pages, ghosts, *kind, attention_cost};
             config.validate();
             return config;
           }),
           py::kw_only(), "slabs"_a, "blocks_per_slab"_a, "pages_per_slab"_a,
           "max_ghost_nodes"_a = 4096, "policy"_a = "lru", "attention_cost"_a = 0.0)
      .def_readonly("slabs", &CacheConfig::slabs)
      .def_readonly("blocks_per_slab", &CacheConfig::blocks_per_slab)
      .def_readonly("pages_per_slab", &CacheConfig::pages_per_slab)
      .def_readonly("max_ghost_nodes", &CacheConfig::max_ghost_nodes)
      .def_property_readonly(
          "policy", [](const CacheConfig& config) { return std::string(name_of(config.policy)); })
      .def_readonly("attention_cost", &CacheConfig::attention_cost);

  py::class_<MissReasons>(module, "MissReasons")
      .def_readonly("new", &MissReasons::fresh)
      .def_readonly("never_checkpointed", &MissReasons::never_checkpointed)
      .def_readonly("checkpoint_evicted", &MissReasons::checkpoint_evicted)
      .def_readonly("kv_evicted", &MissReasons::kv_evicted)
      .def_readonly("alignment", &MissReasons::alignment)
      .def_readonly("in_flight", &MissReasons::in_flight)
      .def("as_dict", &as_dict);

  py::class_<EvictedCheckpoint>(module, "EvictedCheckpoint")
      .def_readonly("eviction", &EvictedCheckpoint::eviction)
      .def_readonly("boundary", &EvictedCheckpoint::boundary)
      .def_readonly("pages_since", &EvictedCheckpoint::pages_since);

  py::class_<PageMatch>(module, "PageMatch")
      .def_readonly("kv_tokens", &PageMatch::kv_tokens)
      .def_readonly("usable_tokens", &PageMatch::usable_tokens)
      .def_property_readonly(
          "checkpoint_kind",
          [kinds](const PageMatch& match) { return kinds.of(match.checkpoint_kind); })
      .def_readonly("miss_reasons", &PageMatch::miss_reasons);

  py::class_<Match>(module, "Match")
      .def_readonly("prompt_tokens", &Match::prompt_tokens)
      .def_readonly("kv_tokens", &Match::kv_tokens)
      .def_readonly("usable_tokens", &Match::usable_tokens)
      .def_property_readonly(
          "checkpoint_kind",
          [kinds](const Match& match) { return kinds.of(match.checkpoint_kind); })
      .def_readonly("branch_tokens", &Match::branch_tokens)
      .def_readonly("miss_reasons", &Match::miss_reasons)
      .def_readonly("in_pages", &Match::in_pages)
      .def_readonly("lost", &Match::evicted)
      .def_readonly("interior_tokens", &Match::interior_tokens);

  py::class_<PoolCounts>(module, "PoolCounts")
      .def_readonly("free", &PoolCounts::free)
      .def_readonly("working", &PoolCounts::working)
      .def_readonly("tree", &PoolCounts::tree)
      .def_readonly("granted", &PoolCounts::granted)
      .def_readonly("quarantined", &PoolCounts::quarantined)
      .def_readonly("total", &PoolCounts::total)
      .def_readonly("pinned", &PoolCounts::pinned);

  py::class_<CacheStats>(module, "TreeStats")
      .def_readonly("pages", &CacheStats::pages)
      .def_readonly("slots", &CacheStats::slots)
      .def_readonly("slabs_free", &CacheStats::slabs_free)
      .def_readonly("slabs_of_pages", &CacheStats::slabs_of_pages)
      .def_readonly("slabs_of_slots", &CacheStats::slabs_of_slots)
      .def_readonly("slabs_total", &CacheStats::slabs_total)
      .def_readonly("nodes", &CacheStats::nodes)
      .def_readonly("ghost_nodes", &CacheStats::ghost_nodes)
      .def_readonly("checkpoints", &CacheStats::checkpoints)
      .def_readonly("allocations", &CacheStats::allocations)
      .def_readonly("cursors", &CacheStats::cursors)
      .def_readonly("evicted_pages", &CacheStats::evicted_pages)
      .def_readonly("evicted_checkpoints", &CacheStats::evicted_checkpoints)
      .def_readonly("allocated_requests", &CacheStats::allocated_requests)
      .def_readonly("prompt_tokens", &CacheStats::prompt_tokens)
      .def_readonly("usable_tokens", &CacheStats::usable_tokens)
      .def_readonly("lost", &CacheStats::miss_reasons)
      .def_property_readonly("policies", [](const CacheStats& stats) {
        py::dict out;
        for (const auto& [policy, saved] : stats.policies) {
          out[py::str(std::string(name_of(policy)))] = saved;
        }
        return out;
      });
}

void bind_evictions(py::module_& module, const CheckpointKinds& kinds) {
  py::class_<Eviction>(module, "Eviction")
      .def_readonly("sequence", &Eviction::sequence)
      .def_property_readonly("kind",
                             [](const Eviction& eviction) { return name_of(eviction.kind); })
      .def_property_readonly(
          "checkpoint_kind",
          [kinds](const Eviction& eviction) { return kinds.of(eviction.checkpoint_kind); })
      .def_readonly("boundary", &Eviction::boundary)
      .def_readonly("pages", &Eviction::pages)
      .def_readonly("score", &Eviction::score)
      .def_property_readonly("allocation",
                             [](const Eviction& eviction) -> std::optional<std::int64_t> {
                               if (!eviction.allocation) return std::nullopt;
                               return raw(*eviction.allocation);
                             });
}

}  // namespace tasuki::cache
