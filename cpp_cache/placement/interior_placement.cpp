#include "placement/interior_placement.h"

#include <algorithm>
#include <limits>

namespace tasuki::cache {

InteriorPlacement::InteriorPlacement(const CacheConfig& config, RadixTree& tree)
    : pages_per_slab_(config.pages_per_slab),
      attention_cost_(config.attention_cost),
      tree_(tree),
      depths_(config.pages_per_slab * kPageTokens, config.attention_cost) {}

std::optional<InteriorPlacement::LeftPrompt> InteriorPlacement::left_prompt(
    const Found& found) const {
  // A request without the KV could not have used a state in it. Only the others add to the earnings
  // of pages.
  if (!found.known || std::max(found.match.kv_tokens, found.standing) < found.known->depth)
    return std::nullopt;
  const auto tokens = tree_.long_prompt_through(*found.known);
  if (!tokens || found.known->depth >= *tokens) return std::nullopt;
  return LeftPrompt{*tokens, found.known->depth};
}

std::vector<std::int64_t> InteriorPlacement::place(const std::optional<LeftPrompt>& left,
                                                   const Match& match) {
  if (left) depths_.left(left->tokens, left->depth);
  const auto usable = static_cast<double>(match.usable_tokens);
  const std::int64_t pages = (match.prompt_tokens - match.usable_tokens) / kPageTokens;
  earnings_.request(usable * (1 + attention_cost_ * usable / 2), pages + pages_per_slab_);
  const LongPrompt prompt{match.prompt_tokens, match.miss_reasons.fresh, match.usable_tokens};
  return depths_.points(prompt, earnings_.price(pages_per_slab_));
}

void InteriorPlacement::mark_prompt_end(const Allocation& allocation, const Node& end) {
  const Match& match = allocation.match;
  const std::int64_t beyond = match.prompt_tokens - end.depth;
  if (end.long_prompt_beyond || !depths_.is_long(match.miss_reasons.fresh)) return;
  if (beyond < 0 || beyond > std::numeric_limits<std::uint16_t>::max()) return;
  tree_.mark_long_prompt(end.id, static_cast<std::uint16_t>(beyond));
  depths_.brought(match.prompt_tokens);
}

}  // namespace tasuki::cache
