// Where allocations keep states inside long first-seen prompts.
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

// Owns what was learnt of where requests leave long prompts, and of what a page earns. Reads the
// tree, and marks in it where long prompts ended.
class InteriorPlacement {
 public:
  // Where a request leaves the KV of a long prompt.
  struct LeftPrompt {
    std::int64_t tokens;  // of the whole prompt
    std::int64_t depth;
  };

  InteriorPlacement(const CacheConfig& config, RadixTree& tree);

  // The long prompt, if any, whose KV a request leaves. Before room is made, which may drop nodes.
  std::optional<LeftPrompt> left_prompt(const Found& found) const;
  // Learns from what an admitted request left; returns where its own first-seen part should keep
  // states.
  std::vector<std::int64_t> place(const std::optional<LeftPrompt>& left, const Match& match);
  // For where later prompts leave it. REQUIRES: the allocation inserted its prompt's end there.
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
