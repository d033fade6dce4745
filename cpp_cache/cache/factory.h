// Caches by their configuration.
#pragma once

#include "cache/prefix_cache.h"

namespace tasuki::cache {

// With the policy that the config names; of kAuto, with shadows that try policies on a sample of
// the requests. They are as much smaller than the real arena as the sample than the traffic, down
// to a least size. Throws InvalidArgument as CacheConfig::validate().
PrefixCache make_prefix_cache(const CacheConfig& config);

}  // namespace tasuki::cache
