// Eviction policies by name.
#pragma once

#include <memory>

#include "core/cache_config.h"
#include "policy/eviction_policy.h"

namespace tasuki::cache {

std::unique_ptr<EvictionPolicy> make_policy(PolicyKind kind);
// For a tier below: one that learns judges by what the arena's learnt, if that learns. REQUIRES:
// `arena` outlives it.
std::unique_ptr<EvictionPolicy> make_policy(PolicyKind kind, const EvictionPolicy& arena);

}  // namespace tasuki::cache
