// What one request holds, from lease() to release().
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cpp_cache/errors.h"
#include "cpp_cache/ids.h"
#include "cpp_cache/match.h"
#include "cpp_cache/node.h"
#include "cpp_cache/policy_trials.h"

namespace tasuki::cache {

enum class LeaseState : std::uint8_t {
  kWorking,
  kGranted,  // a remote sender may write the own pages and working slots
  kClosed,   // a tail took the partial page: only release() may follow
};

// Invariants: pages never change while the lease lives, they only grow; pages[i] is the tree's or
// its own, never both; the tree keeps every page of [0, standing.depth) and every tail in
// pinned_states for it.
struct Lease {
  LeaseId id;
  std::int64_t generation;
  NodeId root;
  Match match;
  std::int64_t cached_tokens;
  Position standing;          // where its published path ends; it pins standing.node
  std::int64_t first_kept;    // tokens before it are known by the tree path alone
  std::vector<Token> kept{};  // tokens from first_kept on
  std::optional<SlotId> cow_source_slot{};
  std::optional<std::pair<PageId, PageId>> tail_copy{};
  std::optional<PageId> source_page{};  // the tail's, where the state stands inside a page
  std::vector<StateRef> pinned_states{};
  std::vector<PageId> pages{};
  std::vector<bool> own{};  // by logical page
  std::int64_t shared_pages = 0;
  std::vector<SlotId> working_slots{};
  std::vector<SlotId> destination_slots{};  // handed out by take_checkpoint_slot
  std::optional<CursorId> cursor{};
  std::int64_t turns = 0;                  // of its conversation before it, as far as is known
  std::optional<StateRef> latest_state{};  // deepest that it used or published
  bool is_sampled = false;                 // the trials want to know what it did
  std::vector<Published> published{};      // states, in order, if it is sampled
  std::optional<StateRef> prompt_state{};  // that it published at its prompt's end
  LeaseState state = LeaseState::kWorking;

  std::int64_t tokens() const { return first_kept + static_cast<std::int64_t>(kept.size()); }
  std::int64_t capacity_tokens() const {
    return static_cast<std::int64_t>(pages.size()) * kPageTokens;
  }
  // Throws IntegrityError unless first_kept <= from <= to <= tokens(): it reads memory.
  Tokens run(std::int64_t from, std::int64_t to) const {
    if (from < first_kept || to < from || to > tokens()) {
      throw IntegrityError("lease " + std::to_string(raw(id)) + " does not keep the tokens from " +
                           std::to_string(from) + " to " + std::to_string(to));
    }
    return Tokens(kept).subspan(static_cast<std::size_t>(from - first_kept),
                                static_cast<std::size_t>(to - from));
  }
};

using LeaseBook = std::map<LeaseId, Lease>;

}  // namespace tasuki::cache
