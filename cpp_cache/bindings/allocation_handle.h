// Python's handle of an allocation.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <optional>

#include "cache/prefix_cache.h"

namespace tasuki::cache {

using CachePtr = std::shared_ptr<PrefixCache>;

// Outlives the allocation: id, generation and match stay readable after release.
struct AllocationHandle {
  CachePtr cache;
  AllocationId id;
  Match match;
  pybind11::object pages;  // array over the first pages_seen entries; pages only grow
  std::size_t pages_seen = 0;
  bool loads = false;  // `match` changes after the load

  // Throws InvalidArgument after release.
  const Allocation& get() const { return cache->allocation(id); }
};

std::optional<AllocationHandle> handle_of(const CachePtr& cache, std::optional<AllocationId> id);

// Throws InvalidArgument if the handle is another cache's.
AllocationId id_in(const CachePtr& cache, const AllocationHandle& handle);

void bind_allocations(pybind11::module_& module);

}  // namespace tasuki::cache
