// Where a HybridTree's leases keep states inside long first-seen prompts.
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "cpp_cache/hybrid_tree.h"

namespace tasuki::cache {

HybridTree::LeftPrompt HybridTree::left_prompt(const Found& found) const {
  // Only who finds the KV could have used a state in it, as only they add to what pages earn.
  if (!found.known || found.match.kv_tokens < found.known->depth) return {};
  const auto tokens = tree_.long_prompt_through(*found.known);
  if (!tokens || found.known->depth >= *tokens) return {};
  return {tokens, found.known->depth};
}

std::vector<std::int64_t> HybridTree::place_interior(const LeftPrompt& left, const Match& match) {
  if (left.tokens) depths_.left(*left.tokens, left.depth);
  const auto usable = static_cast<double>(match.usable_tokens);
  const std::int64_t pages = (match.prompt_tokens - match.usable_tokens) / kPageTokens;
  earnings_.request(usable * (1 + config_.attention_cost * usable / 2),
                    pages + config_.pages_per_slab);
  const LongPrompt prompt{match.prompt_tokens, match.causes.fresh, match.usable_tokens};
  return depths_.points(prompt, earnings_.price(config_.pages_per_slab));
}

void HybridTree::note_long_prompt(const Lease& lease, const Node& end) {
  const std::int64_t beyond = lease.match.prompt_tokens - end.depth;
  if (end.long_prompt_beyond || !depths_.is_long(lease.match.causes.fresh)) return;
  if (beyond < 0 || beyond > std::numeric_limits<std::uint16_t>::max()) return;
  tree_.mark_long_prompt(end.id, static_cast<std::uint16_t>(beyond));
  depths_.brought(lease.match.prompt_tokens);
}

}  // namespace tasuki::cache
