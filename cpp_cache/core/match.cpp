#include "core/match.h"

#include <algorithm>

namespace tasuki::cache {

namespace {

// Make `tokens` more usable, from the reasons in the order of their places.
void become_usable(MissReasons& reasons, std::int64_t tokens) {
  for (std::int64_t* const reason :
       {&reasons.below, &reasons.checkpoint_evicted, &reasons.never_checkpointed,
        &reasons.alignment, &reasons.in_flight, &reasons.kv_evicted, &reasons.fresh}) {
    const std::int64_t taken = std::min(*reason, tokens);
    *reason -= taken;
    tokens -= taken;
  }
}

}  // namespace

Match after_loading(Match match, const StoredState& stored) {
  become_usable(match.miss_reasons, stored.boundary - match.usable_tokens);
  match.usable_tokens = stored.boundary;
  match.kv_tokens = std::max(match.kv_tokens, stored.boundary);
  match.checkpoint_kind = stored.kind;
  if (match.branch_tokens && *match.branch_tokens <= stored.boundary) match.branch_tokens.reset();
  std::erase_if(match.stored,
                [&](const StoredState& each) { return each.boundary <= stored.boundary; });
  PageMatch& pages = match.in_pages;
  const std::int64_t whole = stored.boundary / kPageTokens * kPageTokens;
  pages.kv_tokens = std::max(pages.kv_tokens, whole);
  if (whole != stored.boundary || whole <= pages.usable_tokens) return match;
  become_usable(pages.miss_reasons, whole - pages.usable_tokens);
  pages.usable_tokens = whole;
  pages.checkpoint_kind = stored.kind;
  return match;
}

}  // namespace tasuki::cache
