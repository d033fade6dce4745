// Short hands for tests of HybridTree.
#pragma once

#include <cstdint>
#include <vector>

#include "cpp_cache/hybrid_tree.h"

namespace tasuki::cache {

inline TreeConfig small_arena(std::int64_t slabs = 8) { return {slabs, 4, 3, 64}; }

// Tokens of whole pages, each filled with one value, and `partial` more of the last value.
inline std::vector<Token> prompt(const std::vector<Token>& pages, std::int64_t partial = 1) {
  std::vector<Token> tokens;
  for (const Token page : pages) tokens.insert(tokens.end(), kPageTokens, page);
  tokens.insert(tokens.end(), static_cast<std::size_t>(partial), pages.back());
  return tokens;
}

inline LeaseTerms terms(const std::vector<Token>& tokens, std::int64_t slots = 1) {
  return {static_cast<std::int64_t>(tokens.size()), slots, std::nullopt};
}

// A whole request that leaves a state at `boundary`.
inline void serve(HybridTree& tree, const std::vector<Token>& tokens, std::int64_t boundary) {
  const LeaseId lease = tree.lease(tokens, "", terms(tokens)).value();
  const SlotId slot = tree.lease_of(lease).working_slots.front();
  tree.publish(lease, boundary, slot, CheckpointKind::kTurnEnd);
  tree.release(lease);
}

}  // namespace tasuki::cache
