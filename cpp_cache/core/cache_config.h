// Shape of the arena in the cache, and its eviction: counts, never bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "core/ids.h"

namespace tasuki::cache {

// kMarconi is for comparison in replays.
enum class PolicyKind : std::uint8_t { kLru, kValue, kAuto, kMarconi };

// nullopt: unknown name.
std::optional<PolicyKind> policy_named(std::string_view name);
std::string_view name_of(PolicyKind policy);

// Time at which a tier writes its entries to the next one. kAhead: as soon as there is nothing else
// to write. Nothing is dropped then, and a restart finds the copies.
enum class Filling : std::uint8_t { kAsDropped, kAhead };

// nullopt: unknown name.
std::optional<Filling> filling_named(std::string_view name);
std::string_view name_of(Filling filling);

// Memory below the arena, in slabs of the same shape. A load from it costs `fixed_cost`, and more
// for each page and slot; a prefill of one token costs 1.
struct TierConfig {
  std::int64_t slabs;
  double fixed_cost = 0;
  double page_cost = 0;
  double slot_cost = 0;
  // Limit of written pages per second in the long run; nullopt: none.
  std::optional<double> pages_a_second{};
  Filling filling = Filling::kAsDropped;  // from the tier above
};

// Return the tiers larger than a place of `slabs` slabs. Only they keep evicted entries longer than
// that place would have.
TierBits shelters_of(std::span<const TierConfig> tiers, std::int64_t slabs);

struct CacheConfig {
  std::int64_t slabs;
  std::int64_t blocks_per_slab;  // stride of page ids from slab to slab
  std::int64_t pages_per_slab;
  // Evicted nodes and tails remembered, to name the reason why a prefix is not usable.
  std::int64_t max_ghost_nodes;
  PolicyKind policy = PolicyKind::kLru;
  // Prefill cost of a token per earlier token; the token alone costs 1.
  double attention_cost = 0;
  std::vector<TierConfig> tiers{};  // nearest first; empty: evicted entries are lost
  // Number of processes to acknowledge each transfer: each holds a part of every page.
  std::int32_t ranks = 1;

  // Throws InvalidArgument with the name of the impossible field.
  void validate() const;
};

}  // namespace tasuki::cache
