// Admission of requests: the memory for a request, or the reason to wait.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "alloc/slab_allocator.h"
#include "cache/reclaimer.h"
#include "core/cache_config.h"
#include "core/ids.h"
#include "core/match.h"
#include "requests/allocation_table.h"
#include "tree/radix_tree.h"

namespace tasuki::cache {

// Terms of a request beside its prompt.
struct AllocationTerms {
  std::int64_t capacity_tokens;
  std::int64_t working_slots;
  std::optional<CursorId> cursor;
  // Wait before a load from below the arena, in units of one token's prefill. nullopt: no load.
  std::optional<double> load_wait{};
};

struct PlannedLoad {
  StoredState stored;
  StateKey state;
};

// The node pinned by an admission, and the state from which it starts.
struct AdmissionPlan {
  Match match{};
  std::int64_t cached_tokens = 0;
  std::optional<Position> standing{};  // nullopt: the root
  std::optional<StateKey> source{};
  std::optional<PlannedLoad> load{};
};

// Makes and extends allocations; takes all or nothing. Owns nothing.
class Admission {
 public:
  Admission(const CacheConfig& config, SlabAllocator& allocator, RadixTree& tree, Tiers* tiers,
            Reclaimer& reclaimer, AllocationTable& allocations)
      : config_(config),
        allocator_(allocator),
        tree_(tree),
        tiers_(tiers),
        reclaimer_(reclaimer),
        allocations_(allocations) {}

  // Return the most tokens of one request beside this many working slots. REQUIRES: 0 or more.
  std::int64_t most_tokens(std::int64_t working_slots) const;
  // Throws InvalidArgument, or ImpossibleRequest if waiting cannot help.
  void validate(Tokens prompt, const AllocationTerms& terms) const;

  // Admit the request. nullopt: it will fit once others release. REQUIRES: validate() passed.
  std::optional<AllocationId> admit(Tokens prompt, std::string_view salt,
                                    const AllocationTerms& terms, const AdmissionPlan& plan,
                                    Tick now);
  // Return true if the plan would fit without other allocations.
  bool fits_alone(const AllocationTerms& terms, const AdmissionPlan& plan) const;

  // Return the number of pages lacking for this many tokens; 0 or less: none. Throws as validate().
  std::int64_t pages_lacking(const Allocation& allocation, std::int64_t capacity_tokens) const;
  bool extend(Allocation& allocation, std::int64_t pages, Tick now);

 private:
  void check_possible(std::int64_t capacity_tokens, std::int64_t working_slots) const;
  std::int64_t own_pages(const AllocationTerms& terms, const AdmissionPlan& plan) const;
  // Append own pages to the allocation. REQUIRES: they fit.
  void take_pages(Allocation& allocation, std::int64_t count);
  // REQUIRES: the source is pinned.
  void fork_from(const StateKey& source, Allocation& allocation, Tick now);

  const CacheConfig& config_;
  SlabAllocator& allocator_;
  RadixTree& tree_;
  Tiers* tiers_;
  Reclaimer& reclaimer_;
  AllocationTable& allocations_;
};

}  // namespace tasuki::cache
