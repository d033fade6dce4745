// Eviction policies by name.
#pragma once

#include <memory>

#include "core/cache_config.h"
#include "policy/eviction_policy.h"

namespace tasuki::cache {

std::unique_ptr<EvictionPolicy> make_policy(PolicyKind kind);

}  // namespace tasuki::cache
