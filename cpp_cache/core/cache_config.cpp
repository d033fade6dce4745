#include "core/cache_config.h"

#include <array>
#include <string>
#include <utility>

#include "core/errors.h"

namespace tasuki::cache {

namespace {

constexpr std::array<std::pair<std::string_view, PolicyKind>, 4> kNames{{
    {"lru", PolicyKind::kLru},
    {"value", PolicyKind::kValue},
    {"auto", PolicyKind::kAuto},
    {"marconi", PolicyKind::kMarconi},
}};

}  // namespace

std::optional<PolicyKind> policy_named(std::string_view name) {
  for (const auto& [known, kind] : kNames) {
    if (known == name) return kind;
  }
  return std::nullopt;
}

std::string_view name_of(PolicyKind policy) {
  for (const auto& [known, kind] : kNames) {
    if (kind == policy) return known;
  }
  return {};
}

void CacheConfig::validate() const {
  constexpr std::int64_t kMaxIds = INT32_MAX;
  if (slabs < 1) throw InvalidArgument("slabs must be at least 1, not " + std::to_string(slabs));
  if (pages_per_slab < 1) {
    throw InvalidArgument("pages_per_slab must be at least 1, not " +
                          std::to_string(pages_per_slab));
  }
  if (blocks_per_slab < pages_per_slab) {
    throw InvalidArgument("blocks_per_slab must be at least pages_per_slab " +
                          std::to_string(pages_per_slab) + ", not " +
                          std::to_string(blocks_per_slab));
  }
  if (slabs > kMaxIds / blocks_per_slab) {
    throw InvalidArgument("slabs * blocks_per_slab must stay below 2^31: page ids are int32");
  }
  if (!(attention_cost >= 0)) throw InvalidArgument("attention_cost must be 0 or more");
  if (max_ghost_nodes < 0) {
    throw InvalidArgument("max_ghost_nodes must be 0 or more, not " +
                          std::to_string(max_ghost_nodes));
  }
}

}  // namespace tasuki::cache
