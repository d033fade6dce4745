// Caches by their configuration.
#pragma once

#include "cache/prefix_cache.h"

namespace tasuki::cache {

// Make a cache with the configured policy. kAuto adds shadows, to try policies on a sample of the
// requests. A shadow is smaller than the arena by the sample's share, down to a least size. Throws
// InvalidArgument as CacheConfig::validate().
PrefixCache make_prefix_cache(const CacheConfig& config);

}  // namespace tasuki::cache
