// Ids held by one request, from allocate() to release().
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "core/ids.h"
#include "core/match.h"
#include "nodes/node.h"
#include "tiers/transfer.h"
#include "trials/served.h"

namespace tasuki::cache {

enum class AllocationState : std::uint8_t {
  kWorking,
  kGranted,  // a remote sender may write the own pages and working slots
  kClosed,   // a tail took the partial page: only release() may follow
  kVoid,     // its starting state was not loaded: only release() may follow
};

// A state being loaded: the request starts from it after the load.
struct PendingLoad {
  TierLoad plan;
  StoredState stored;
};

// Invariants: pages never change while the allocation lives, they only grow. pages[i] is the tree's
// or its own, never both, and the first shared_pages are the tree's. The tree keeps every page of
// [0, standing.depth) and every tail in pinned_states for it.
struct Allocation {
  AllocationId id;
  NodeId root;
  Match match;
  std::int64_t cached_tokens;
  Position standing;          // end of its inserted path; pins standing.node
  std::int64_t first_kept;    // earlier tokens are only in the tree's path
  std::vector<Token> kept{};  // tokens from first_kept on
  std::optional<SlotId> cow_source_slot{};
  std::optional<std::pair<PageId, PageId>> tail_copy{};
  std::optional<PageId> source_page{};  // the tail's page, if the state is inside a page
  std::optional<StateKey> source{};     // state from which it started
  std::vector<StateKey> pinned_states{};
  std::vector<PageId> pages{};
  std::vector<bool> own{};  // by logical page
  std::int64_t shared_pages = 0;
  std::vector<SlotId> working_slots{};
  std::vector<SlotId> destination_slots{};  // handed out by take_checkpoint_slot
  std::optional<CursorId> cursor{};
  std::int64_t turns = 0;                  // known earlier turns of its conversation
  std::optional<StateKey> latest_state{};  // deepest used or inserted state
  bool is_sampled = false;                 // policies are tried with it
  std::vector<InsertedState> inserted{};   // states, in order, if is_sampled
  std::optional<StateKey> prompt_state{};  // state inserted at its prompt's end
  // End of an earlier message of its conversation; a later one was inserted in its place.
  std::optional<StateKey> replaced_state{};
  std::optional<PendingLoad> load{};  // the allocation is granted until the load has ended
  AllocationState state = AllocationState::kWorking;

  std::int64_t tokens() const { return first_kept + static_cast<std::int64_t>(kept.size()); }
  std::int64_t capacity_tokens() const {
    return static_cast<std::int64_t>(pages.size()) * kPageTokens;
  }
  // Throws IntegrityError unless first_kept <= from <= to <= tokens(): it reads memory.
  Tokens run(std::int64_t from, std::int64_t to) const;

  template <typename Each>
  void for_each_own_page(Each each) const {
    for (auto i = static_cast<std::size_t>(shared_pages); i < pages.size(); ++i) {
      if (own[i]) each(pages[i]);
    }
  }
  // The logical page becomes the tree's.
  PageId give_page(std::size_t logical);
  // After pages were given.
  void count_shared_pages();

  // Among the working and destination slots.
  bool holds_slot(SlotId slot) const;
  void give_slot(SlotId slot);
};

}  // namespace tasuki::cache
