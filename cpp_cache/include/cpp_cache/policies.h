// Eviction policies by name.
#pragma once

#include <memory>

#include "cpp_cache/eviction.h"
#include "cpp_cache/tree_config.h"

namespace tasuki::cache {

std::unique_ptr<EvictionPolicy> make_policy(PolicyKind kind);

}  // namespace tasuki::cache
