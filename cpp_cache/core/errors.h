// The typed errors of the cache. Nothing has changed when one is thrown.
#pragma once

#include <stdexcept>

namespace tasuki::cache {

class CacheError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// No arena of this size can ever hold the request.
class ImpossibleRequest : public CacheError {
 public:
  using CacheError::CacheError;
};

// A malformed argument, or a call forbidden in the allocation's state.
class InvalidArgument : public CacheError {
 public:
  using CacheError::CacheError;
};

// A numbered invariant of cache/prefix_cache.h is broken; the message names it.
class IntegrityError : public CacheError {
 public:
  using CacheError::CacheError;
};

}  // namespace tasuki::cache
