#include "core/cache_config.h"

#include <array>
#include <string>
#include <utility>

#include "core/errors.h"
#include "core/ids.h"

namespace tasuki::cache {

namespace {

constexpr std::array<std::pair<std::string_view, PolicyKind>, 4> kNames{{
    {"lru", PolicyKind::kLru},
    {"value", PolicyKind::kValue},
    {"auto", PolicyKind::kAuto},
    {"marconi", PolicyKind::kMarconi},
}};

}  // namespace

std::optional<Filling> filling_named(std::string_view name) {
  for (const Filling filling : {Filling::kAsDropped, Filling::kAhead}) {
    if (name_of(filling) == name) return filling;
  }
  return std::nullopt;
}

std::string_view name_of(Filling filling) {
  return filling == Filling::kAhead ? "ahead" : "as_dropped";
}

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

TierBits shelters_of(std::span<const TierConfig> tiers, std::int64_t slabs) {
  TierBits found = 0;
  for (std::size_t place = 0; place < tiers.size(); ++place) {
    if (tiers[place].slabs > slabs) found |= bit_of(static_cast<TierId>(place));
  }
  return found;
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
  if (tiers.size() > kMostTiers) {
    throw InvalidArgument("at most " + std::to_string(kMostTiers) + " tiers stand below an arena");
  }
  for (const TierConfig& tier : tiers) {
    if (tier.slabs < 1 || tier.slabs > kMaxIds / blocks_per_slab) {
      throw InvalidArgument(
          "a tier must have 1 slab or more, and slabs * blocks_per_slab below "
          "2^31, not " +
          std::to_string(tier.slabs) + " slabs");
    }
    if (!(tier.fixed_cost >= 0 && tier.page_cost >= 0 && tier.slot_cost >= 0)) {
      throw InvalidArgument("the costs of a tier must be 0 or more");
    }
    if (tier.pages_a_second && !(*tier.pages_a_second >= 0)) {
      throw InvalidArgument("pages_a_second of a tier must be 0 or more");
    }
  }
  if (ranks < 1) throw InvalidArgument("ranks must be at least 1, not " + std::to_string(ranks));
  if (max_ghost_nodes < 0) {
    throw InvalidArgument("max_ghost_nodes must be 0 or more, not " +
                          std::to_string(max_ghost_nodes));
  }
}

}  // namespace tasuki::cache
