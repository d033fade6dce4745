#include "bindings/value_bindings.h"

#include <pybind11/stl.h>

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "cache/cache_stats.h"
#include "core/cache_config.h"
#include "core/errors.h"
#include "core/match.h"
#include "events/eviction_log.h"
#include "tiers/transfer.h"

namespace py = pybind11;
using namespace py::literals;

namespace tasuki::cache {

namespace {

py::dict as_dict(const MissReasons& reasons) {
  py::dict out("new"_a = reasons.fresh, "never_checkpointed"_a = reasons.never_checkpointed,
               "checkpoint_evicted"_a = reasons.checkpoint_evicted,
               "kv_evicted"_a = reasons.kv_evicted, "alignment"_a = reasons.alignment,
               "in_flight"_a = reasons.in_flight);
  // Only in a cache with tiers.
  if (reasons.below > 0) out["below"] = reasons.below;
  return out;
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
  py::class_<TierConfig>(module, "TierConfig")
      .def(py::init([](std::int64_t slabs, double fixed_cost, double page_cost, double slot_cost,
                       std::optional<double> pages_a_second, const std::string& filling) {
             const auto how = filling_named(filling);
             if (!how) {
               throw InvalidArgument("filling must be as_dropped or ahead, not " + filling);
             }
             return TierConfig{slabs, fixed_cost, page_cost, slot_cost, pages_a_second, *how};
           }),
           py::kw_only(), "slabs"_a, "fixed_cost"_a = 0.0, "page_cost"_a = 0.0, "slot_cost"_a = 0.0,
           "pages_a_second"_a = py::none(), "filling"_a = "as_dropped")
      .def_readonly("slabs", &TierConfig::slabs)
      .def_readonly("fixed_cost", &TierConfig::fixed_cost)
      .def_readonly("page_cost", &TierConfig::page_cost)
      .def_readonly("slot_cost", &TierConfig::slot_cost)
      .def_readonly("pages_a_second", &TierConfig::pages_a_second)
      .def_property_readonly(
          "filling", [](const TierConfig& config) { return std::string(name_of(config.filling)); });

  py::class_<CacheConfig>(module, "TreeConfig")
      .def(py::init([](std::int64_t slabs, std::int64_t blocks, std::int64_t pages,
                       std::int64_t ghosts, const std::string& policy, double attention_cost,
                       std::vector<TierConfig> tiers, std::int32_t ranks) {
             const auto kind = policy_named(policy);
             if (!kind) {
               throw InvalidArgument("policy must be lru, value, auto or marconi, not " + policy);
             }
             const CacheConfig config{slabs,          blocks,           pages, ghosts, *kind,
                                      attention_cost, std::move(tiers), ranks};
             config.validate();
             return config;
           }),
           py::kw_only(), "slabs"_a, "blocks_per_slab"_a, "pages_per_slab"_a,
           "max_ghost_nodes"_a = 4096, "policy"_a = "lru", "attention_cost"_a = 0.0,
           "tiers"_a = std::vector<TierConfig>(), "ranks"_a = 1)
      .def_readonly("slabs", &CacheConfig::slabs)
      .def_readonly("blocks_per_slab", &CacheConfig::blocks_per_slab)
      .def_readonly("pages_per_slab", &CacheConfig::pages_per_slab)
      .def_readonly("max_ghost_nodes", &CacheConfig::max_ghost_nodes)
      .def_property_readonly(
          "policy", [](const CacheConfig& config) { return std::string(name_of(config.policy)); })
      .def_readonly("attention_cost", &CacheConfig::attention_cost)
      .def_readonly("tiers", &CacheConfig::tiers)
      .def_readonly("ranks", &CacheConfig::ranks);

  py::class_<MissReasons>(module, "MissReasons")
      .def_readonly("new", &MissReasons::fresh)
      .def_readonly("never_checkpointed", &MissReasons::never_checkpointed)
      .def_readonly("checkpoint_evicted", &MissReasons::checkpoint_evicted)
      .def_readonly("kv_evicted", &MissReasons::kv_evicted)
      .def_readonly("alignment", &MissReasons::alignment)
      .def_readonly("in_flight", &MissReasons::in_flight)
      .def_readonly("below", &MissReasons::below)
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

  py::class_<StoredState>(module, "StoredState")
      .def_readonly("boundary", &StoredState::boundary)
      .def_property_readonly("kind",
                             [kinds](const StoredState& stored) { return kinds.of(stored.kind); })
      .def_property_readonly("tier", [](const StoredState& stored) { return raw(stored.tier); })
      .def_readonly("pages", &StoredState::pages)
      .def_readonly("cost", &StoredState::cost);

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
      .def_readonly("stored", &Match::stored)
      .def_readonly("interior_tokens", &Match::interior_tokens);

  py::class_<PoolCounts>(module, "PoolCounts")
      .def_readonly("free", &PoolCounts::free)
      .def_readonly("working", &PoolCounts::working)
      .def_readonly("tree", &PoolCounts::tree)
      .def_readonly("granted", &PoolCounts::granted)
      .def_readonly("quarantined", &PoolCounts::quarantined)
      .def_readonly("total", &PoolCounts::total)
      .def_readonly("pinned", &PoolCounts::pinned);

  py::class_<TierCounts>(module, "TierStats")
      .def_readonly("pages", &TierCounts::pages)
      .def_readonly("slots", &TierCounts::slots)
      .def_readonly("slabs_free", &TierCounts::slabs_free)
      .def_readonly("slabs_total", &TierCounts::slabs_total)
      .def_readonly("written_pages", &TierCounts::written_pages)
      .def_readonly("written_slots", &TierCounts::written_slots)
      .def_readonly("loaded_pages", &TierCounts::loaded_pages)
      .def_readonly("loaded_slots", &TierCounts::loaded_slots)
      .def_readonly("dropped_pages", &TierCounts::dropped_pages)
      .def_readonly("dropped_slots", &TierCounts::dropped_slots)
      .def_readonly("refused_writes", &TierCounts::refused_writes)
      .def_readonly("abandoned_writes", &TierCounts::abandoned_writes)
      .def_readonly("failed_transfers", &TierCounts::failed_transfers)
      .def_readonly("budget_pages", &TierCounts::budget_pages);

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
      .def_readonly("tiers", &CacheStats::tiers)
      .def_readonly("waiting_writes", &CacheStats::waiting_writes)
      .def_property_readonly("policies", [](const CacheStats& stats) {
        py::dict out;
        for (const auto& [policy, saved] : stats.policies) {
          out[py::str(std::string(name_of(policy)))] = saved;
        }
        return out;
      });
}

void bind_transfers(py::module_& module) {
  py::class_<TierWrite>(module, "TierWrite")
      .def_property_readonly("id", [](const TierWrite& write) { return raw(write.id); })
      .def_property_readonly("source",
                             [](const TierWrite& write) -> std::optional<int> {
                               if (!write.from) return std::nullopt;
                               return raw(*write.from);
                             })
      .def_property_readonly("target", [](const TierWrite& write) { return int{raw(write.to)}; })
      .def_property_readonly("pages",
                             [](const TierWrite& write) {
                               std::vector<std::pair<std::int32_t, std::int32_t>> out;
                               for (const auto& [from, to] : write.pages) {
                                 out.emplace_back(raw(from), raw(to));
                               }
                               return out;
                             })
      .def_property_readonly("page_count",
                             [](const TierWrite& write) { return write.pages.size(); })
      .def_property_readonly("slot", [](const TierWrite& write) {
        return std::pair(raw(write.slot.first), raw(write.slot.second));
      });

  py::class_<TierLoad>(module, "TierLoad")
      .def_property_readonly("id", [](const TierLoad& load) { return raw(load.id); })
      .def_property_readonly("pages",
                             [](const TierLoad& load) {
                               std::vector<std::tuple<int, std::int32_t, std::int32_t>> out;
                               for (const PageLoad& page : load.pages) {
                                 out.emplace_back(raw(page.from), raw(page.source),
                                                  raw(page.target));
                               }
                               return out;
                             })
      .def_readonly("boundary", &TierLoad::boundary)
      .def_property_readonly("state", [](const TierLoad& load) {
        return std::tuple(int{raw(load.state_from)}, raw(load.source), raw(load.target));
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
