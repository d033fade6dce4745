// Placement of states inside long first-seen prompts.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/cache_config.h"
#include "placement/branch_depths.h"
#include "placement/earnings.h"
#include "requests/allocation.h"
#include "requests/matcher.h"
#include "tree/radix_tree.h"

namespace tasuki::cache {

// Owns the learnt depths and the earnings of a page. Reads the tree, and marks the ends of long
// prompts in it.
class InteriorPlacement {
 public:
  // A request's last common place with the KV of a long prompt.
  struct LeftPrompt {
    std::int64_t tokens;  // length of the whole prompt
    std::int64_t depth;
  };

  InteriorPlacement(const CacheConfig& config, RadixTree& tree);

  // Return the long prompt left by a request, if it had KV. Call before room is made, because that
  // may drop nodes.
  std::optional<LeftPrompt> left_prompt(const Found& found) const;
  // Learn from the prompt left by an admitted request. Returns the places for states in its own
  // first-seen part.
  std::vector<std::int64_t> place(const std::optional<LeftPrompt>& left, const Match& match);
  // Mark the prompt's end for later prompts. REQUIRES: the allocation inserted it at the node
  // `end`.
  void mark_prompt_end(const Allocation& allocation, const Node& end);
  // Something was evicted: pages have a price from now on.
  void evicted() { earnings_.evicted(); }

 private:
  std::int64_t pages_per_slab_;
  double attention_cost_;
  RadixTree& tree_;
  BranchDepths depths_;
  Earnings earnings_;
};

}  // namespace tasuki::cache
