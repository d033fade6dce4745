// Eviction policies by name.
#pragma once

#include <memory>

#include "core/cache_config.h"
#include "policy/eviction_policy.h"

namespace tasuki::cache {

std::unique_ptr<EvictionPolicy> make_policy(PolicyKind kind);
// Make the policy of a tier. A learning one uses the arena's model, if there is one. REQUIRES:
// `arena` outlives it.
std::unique_ptr<EvictionPolicy> make_policy(PolicyKind kind, const EvictionPolicy& arena);

}  // namespace tasuki::cache
