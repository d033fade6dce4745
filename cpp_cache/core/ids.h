// Strong ids: a page is never mistaken for a slot, nor a node for either.
#pragma once

#include <bit>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>

namespace tasuki::cache {

enum class PageId : std::int32_t {};        // slab * blocks_per_slab + index in the slab
enum class SlotId : std::int32_t {};        // number of its slab
enum class NodeId : std::int32_t {};        // reused after a node is dropped: see Node::serial
enum class TailId : std::int64_t {};        // never reused
enum class AllocationId : std::int64_t {};  // never reused
enum class CursorId : std::int64_t {};      // never reused
enum class QuarantineId : std::int64_t {};  // never reused
enum class WatchId : std::int64_t {};       // never reused
enum class TransferId : std::int64_t {};    // never reused
enum class TierId : std::uint8_t {};        // below the arena, the nearest is 0

template <typename Id>
constexpr std::underlying_type_t<Id> raw(Id id) {
  return static_cast<std::underlying_type_t<Id>>(id);
}

// Name of a state at the end of `node`, or at the end of one of its tails. Stable from birth until
// its ghost is forgotten.
struct StateKey {
  NodeId node;
  std::optional<TailId> tail;

  auto operator<=>(const StateKey&) const = default;
};

using Token = std::int32_t;
using Tokens = std::span<const Token>;
using Tick = std::uint64_t;     // time on the logical clock: one tick per mutating call
using TierBits = std::uint8_t;  // a set of tiers

inline constexpr std::int64_t kPageTokens = 64;
inline constexpr std::size_t kMostTiers = 4;

constexpr TierBits bit_of(TierId tier) { return static_cast<TierBits>(1U << raw(tier)); }
// REQUIRES: not empty.
constexpr TierId nearest_of(TierBits tiers) { return static_cast<TierId>(std::countr_zero(tiers)); }
// Return the place of a tier; the arena's is 0.
constexpr std::uint8_t place_of(TierId tier) { return static_cast<std::uint8_t>(1 + raw(tier)); }

}  // namespace tasuki::cache
