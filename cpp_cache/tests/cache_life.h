// Short hands for tests of PrefixCache.
#pragma once

#include <cstdint>
#include <vector>

#include "cache/factory.h"

namespace tasuki::cache {

inline CacheConfig small_arena(std::int64_t slabs = 8) { return {slabs, 4, 3, 64}; }

// Tokens of whole pages, each filled with one value, and `partial` more of the last value.
inline std::vector<Token> prompt(const std::vector<Token>& pages, std::int64_t partial = 1) {
  std::vector<Token> tokens;
  for (const Token page : pages) tokens.insert(tokens.end(), kPageTokens, page);
  tokens.insert(tokens.end(), static_cast<std::size_t>(partial), pages.back());
  return tokens;
}

inline AllocationTerms terms(const std::vector<Token>& tokens, std::int64_t slots = 1) {
  return {static_cast<std::int64_t>(tokens.size()), slots, std::nullopt};
}

// Serve a whole request and leave a state at `boundary`.
inline void serve(PrefixCache& cache, const std::vector<Token>& tokens, std::int64_t boundary) {
  const AllocationId allocation = cache.allocate(tokens, "", terms(tokens)).value();
  const SlotId slot = cache.allocation(allocation).working_slots.front();
  cache.insert(allocation, boundary, slot, CheckpointKind::kTurnEnd);
  cache.release(allocation);
}

}  // namespace tasuki::cache
