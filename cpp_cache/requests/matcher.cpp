#include "requests/matcher.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <memory_resource>
#include <ranges>
#include <vector>

#include "core/common_tokens.h"

namespace tasuki::cache {

namespace {

// Length of a path without memory from the heap.
constexpr std::size_t kUsualPath = 16;

std::int64_t length(Tokens tokens) { return static_cast<std::int64_t>(tokens.size()); }

Tokens from(Tokens tokens, std::int64_t start) {
  return tokens.subspan(static_cast<std::size_t>(start));
}

std::int64_t whole_pages(std::int64_t tokens) { return tokens / kPageTokens * kPageTokens; }

// End of each reason, in tokens from the start. A reason has no tokens if it ends before another
// begins.
struct Ends {
  std::int64_t usable;
  std::int64_t below;
  std::int64_t checkpoint_evicted;
  std::int64_t never_checkpointed;
  std::int64_t alignment;
  std::int64_t in_flight;
  std::int64_t kv_evicted;
  std::int64_t prompt;
};

// From the usable tokens on, each reason has the tokens up to its end:
//   [usable, state in a tier) below
//   [.., evicted state) checkpoint_evicted
//   [.., KV at or before the cap) never_checkpointed
//   [.., KV in part of a page or beyond the cap) alignment
//   [.., live allocation) in_flight
//   [.., evicted KV) kv_evicted
//   [.., prompt) new
MissReasons miss_reasons_between(const Ends& ends) {
  MissReasons miss_reasons;
  std::int64_t done = ends.usable;
  const auto take = [&](std::int64_t& reason, std::int64_t end) {
    const std::int64_t stop = std::min(end, ends.prompt);
    if (stop <= done) return;
    reason += stop - done;
    done = stop;
  };
  take(miss_reasons.below, ends.below);
  take(miss_reasons.checkpoint_evicted, ends.checkpoint_evicted);
  take(miss_reasons.never_checkpointed, ends.never_checkpointed);
  take(miss_reasons.alignment, ends.alignment);
  take(miss_reasons.in_flight, ends.in_flight);
  take(miss_reasons.kv_evicted, ends.kv_evicted);
  take(miss_reasons.fresh, ends.prompt);
  return miss_reasons;
}

}  // namespace

// Entries along a walk, as token counts from the root.
struct Matcher::Survey {
  std::int64_t cap;                      // prompt - 1
  std::int64_t kv;                       // end of the pages, or of a tail that matches whole
  std::optional<StateKey> source{};      // deepest state at or before cap
  std::int64_t usable = 0;               // boundary of the source
  std::int64_t usable_pages = 0;         // whole pages below it
  std::optional<CheckpointKind> kind{};  // kind of the source
  std::int64_t evicted_state = 0;        // deepest evicted state at or before cap
  std::optional<StateKey> evicted{};     // that state
  std::int64_t evicted_kv = 0;           // deepest evicted KV
  bool state_at_end = false;             // a state is at exactly the prompt's end

  // The same for states at ends of pages only; tails are not looked at.
  struct {
    bool found = false;
    std::int64_t usable = 0;
    std::optional<CheckpointKind> kind{};
    std::int64_t evicted_state = 0;
    bool state_at_end = false;
  } in_pages{};
};

Matcher::Walk Matcher::walk(Tokens prompt, NodeId root, std::optional<Position> start,
                            std::pmr::memory_resource& memory) const {
  Walk walk{.path = std::pmr::vector<NodeId>(&memory)};
  const std::int64_t limit = whole_pages(length(prompt));
  walk.path.reserve(kUsualPath);
  if (start) {
    walk.matched = start->depth;
    for (const Node* node = &tree_.node(tree_.cover(start->node, start->depth).node);;
         node = &tree_.node(*node->parent)) {
      walk.path.push_back(node->id);
      if (node->is_root()) break;
    }
    std::ranges::reverse(walk.path);
  } else {
    walk.path.push_back(root);
  }
  const auto page_at = [&](std::int64_t depth) {
    return PageKey(from(prompt, depth).first(static_cast<std::size_t>(kPageTokens)));
  };
  std::optional<PageKey> next;  // the page after the deepest node
  while (walk.matched < limit) {
    const Node* node = &tree_.node(walk.path.back());
    if (walk.matched == node->depth) {
      const auto child = tree_.find_child(*node, next ? *next : page_at(walk.matched));
      if (!child) break;
      walk.path.push_back(*child);
      node = &tree_.node(*child);
      // While the child's run is on its way from memory.
      next.reset();
      if (node->depth < limit) tree_.expect_child(*node, next.emplace(page_at(node->depth)));
    }
    const Tokens edge = from(node->tokens, walk.matched - node->start());
    const Tokens rest =
        from(prompt, walk.matched).first(static_cast<std::size_t>(limit - walk.matched));
    walk.matched += whole_pages(common_tokens(edge, rest));
    if (walk.matched < node->depth) break;
  }
  for (const NodeId id : walk.path) {
    const Node& node = tree_.node(id);
    if (node.is_ghost()) break;
    walk.standing = std::min(node.depth, walk.matched);
    if (node.resident) walk.resident = walk.standing;
  }
  return walk;
}

Matcher::Survey Matcher::survey(Tokens prompt, const Walk& walk) const {
  Survey survey{.cap = length(prompt) - 1, .kv = walk.resident};
  survey.evicted_kv = walk.matched;
  const auto stands = [&](const Checkpoint& state, std::optional<TailId> tail, const Node& node) {
    if (state.boundary > survey.cap) {
      survey.state_at_end = true;
    } else if (state.boundary > survey.usable) {
      survey.source = StateKey{node.id, tail};
      survey.usable = state.boundary;
      survey.usable_pages = node.depth;
      survey.kind = state.kind;
    }
  };
  const auto gone = [&](std::int64_t boundary, std::optional<TailId> tail, const Node& node) {
    if (boundary <= survey.evicted_state) return;
    survey.evicted_state = boundary;
    survey.evicted = StateKey{node.id, tail};
  };
  const auto look_inside = [&](const Node& node) {
    node.tails.for_each_start(from(prompt, node.depth), [&](const Tail& tail) {
      const std::int64_t end = node.depth + length(tail.tokens);
      if (tail.below.tiers != 0 && !tail.resident()) return;
      if (tail.resident()) {
        survey.kv = std::max(survey.kv, end);
        stands(*tail.state, tail.id, node);
      } else {
        survey.evicted_kv = std::max(survey.evicted_kv, end);
        if (end <= survey.cap) gone(end, tail.id, node);
      }
    });
    if (node.checkpoint) stands(*node.checkpoint, std::nullopt, node);
    if (node.checkpoint_evicted && node.depth <= survey.cap) {
      gone(node.depth, std::nullopt, node);
    }
  };
  const auto look_at_end = [&](const Node& node) {
    auto& pages = survey.in_pages;
    if (node.checkpoint && node.depth > survey.cap) {
      pages.state_at_end = true;
    } else if (node.checkpoint) {
      pages.found = true;
      pages.usable = node.depth;
      pages.kind = node.checkpoint->kind;
    }
    if (node.checkpoint_evicted && node.depth <= survey.cap) {
      pages.evicted_state = std::max(pages.evicted_state, node.depth);
    }
  };
  // Deepest first: below a usable state no shallower one matters.
  for (const NodeId id : std::views::reverse(walk.path)) {
    const Node& node = tree_.node(id);
    if (node.depth > walk.matched) continue;
    if (!survey.source) look_inside(node);
    look_at_end(node);
    if (survey.in_pages.found) break;
  }
  return survey;
}

void Matcher::add_stored(Tokens prompt, const Walk& walk, std::int64_t usable, Found& found) const {
  const std::int64_t cap = length(prompt) - 1;
  for (const NodeId id : std::views::reverse(walk.path)) {
    const Node& node = tree_.node(id);
    if (node.depth > walk.standing) continue;
    std::vector<const Tail*> tails;  // shortest first, after resident ones
    node.tails.for_each_start(from(prompt, node.depth), [&](const Tail& tail) {
      const std::int64_t end = node.depth + length(tail.tokens);
      if (!tail.resident() && tail.below.tiers != 0 && end <= cap && end > usable) {
        tails.push_back(&tail);
      }
    });
    std::ranges::sort(tails, std::greater<>{},
                      [](const Tail* tail) { return tail->tokens.size(); });
    for (const Tail* const tail : tails) {
      add_stored({id, tail->id}, node.depth + length(tail->tokens), walk, found);
    }
    if (node.depth <= usable) break;
    if (!node.checkpoint && node.checkpoint_below.tiers != 0 && node.depth <= cap) {
      add_stored({id, std::nullopt}, node.depth, walk, found);
    }
  }
}

void Matcher::add_stored(const StateKey& key, std::int64_t boundary, const Walk& walk,
                         Found& found) const {
  const StateBelow below = tree_.state_below(key);
  StoredState stored{boundary, below.checkpoint_kind(), nearest_of(below.tiers)};
  StoredPlace place{key, std::nullopt};
  for (const NodeId id : walk.path) {
    const Node& node = tree_.node(id);
    if (node.resident) {
      if (!node.is_root()) place.arena = Position{id, node.depth};
    } else {
      stored.pages[raw(nearest_of(node.kv_below))] += length(node.tokens) / kPageTokens;
    }
    if (id == key.node) break;
  }
  if (key.tail) ++stored.pages[raw(stored.tier)];
  stored.cost = tiers_[raw(stored.tier)].slot_cost;
  for (std::size_t tier = 0; tier < tiers_.size(); ++tier) {
    if (stored.pages[tier] == 0 && tier != raw(stored.tier)) continue;
    stored.cost +=
        tiers_[tier].fixed_cost + tiers_[tier].page_cost * static_cast<double>(stored.pages[tier]);
  }
  found.match.stored.push_back(stored);
  found.stored.push_back(place);
}

// Return the number of tokens after the last whole page shared by the prompt and a page in the
// tree.
std::int64_t Matcher::partial_page(Tokens prompt, const Walk& walk) const {
  const Tokens rest = from(prompt, walk.resident);
  if (rest.empty()) return 0;
  const Node* node = nullptr;
  for (const NodeId id : walk.path) {
    if (tree_.node(id).resident) node = &tree_.node(id);
  }
  if (walk.resident < node->depth) {
    const Tokens page = from(node->tokens, walk.resident - node->start())
                            .first(static_cast<std::size_t>(kPageTokens));
    return common_tokens(page, rest);
  }
  return std::max(tree_.common_with_child(*node, rest), node->tails.common_with(rest));
}

// Return the number of tokens shared by the prompt and a live allocation. An allocation is listed
// in the node of its path's end. So only those along the walk can go on beyond the tree.
std::int64_t Matcher::in_flight_end(Tokens prompt, const Walk& walk) const {
  std::int64_t end = 0;
  for (const NodeId node : walk.path) {
    for (const AllocationId id : tree_.node(node).allocations) {
      const Allocation& allocation = allocations_.at(id);
      const std::int64_t start = std::min(allocation.standing.depth, walk.matched);
      if (start < allocation.first_kept) continue;
      const std::int64_t same =
          common_tokens(allocation.run(start, allocation.tokens()), from(prompt, start));
      end = std::max(end, start + same);
    }
  }
  return end;
}

Found Matcher::find(Tokens prompt, std::string_view salt, std::optional<Position> start) const {
  Found found{};
  Match& match = found.match;
  match.prompt_tokens = length(prompt);
  const auto root = tree_.root(salt);
  if (!root) {
    match.miss_reasons.fresh = match.in_pages.miss_reasons.fresh = match.prompt_tokens;
    return found;
  }
  alignas(NodeId) std::array<std::byte, kUsualPath * sizeof(NodeId)> room;
  std::pmr::monotonic_buffer_resource memory(room.data(), room.size());
  const Walk path = walk(prompt, *root, start, memory);
  const Survey seen = survey(prompt, path);
  found.known = {path.path.back(), path.matched};
  match.kv_tokens = seen.kv;
  match.usable_tokens = seen.usable;
  match.checkpoint_kind = seen.kind;
  found.source = seen.source;
  if (seen.evicted_state > seen.usable) found.evicted = seen.evicted;
  found.evicted_boundary = seen.evicted_state;
  found.standing = path.standing;
  if (!tiers_.empty()) add_stored(prompt, path, seen.usable, found);
  if (seen.source) found.usable = {seen.source->node, seen.usable_pages};

  const std::int64_t kv_pages = std::min(path.resident, whole_pages(seen.cap));
  if (kv_pages > 0) found.kv = tree_.cover(path.path.back(), kv_pages);
  const std::int64_t standing_pages = std::min(path.standing, whole_pages(seen.cap));
  if (standing_pages > seen.usable) match.branch_tokens = standing_pages;

  const std::int64_t in_flight = in_flight_end(prompt, path);
  match.miss_reasons = miss_reasons_between(
      {.usable = seen.usable,
       .below = match.stored.empty() ? 0 : match.stored.front().boundary,
       .checkpoint_evicted = std::min(seen.evicted_state, std::max(seen.kv, path.standing)),
       .never_checkpointed = seen.state_at_end ? 0 : standing_pages,
       .alignment = std::max({seen.kv, path.standing, path.resident + partial_page(prompt, path)}),
       .in_flight = in_flight,
       .kv_evicted = seen.evicted_kv,
       .prompt = match.prompt_tokens});
  const auto& pages = seen.in_pages;
  std::int64_t stored_in_pages = 0;
  for (const StoredState& stored : match.stored) {
    if (stored.boundary % kPageTokens == 0) {
      stored_in_pages = std::max(stored_in_pages, stored.boundary);
    }
  }
  match.in_pages = {.kv_tokens = path.resident,
                    .usable_tokens = pages.usable,
                    .checkpoint_kind = pages.kind,
                    .miss_reasons = miss_reasons_between(
                        {.usable = pages.usable,
                         .below = stored_in_pages,
                         .checkpoint_evicted = std::min(pages.evicted_state, path.standing),
                         .never_checkpointed = pages.state_at_end ? 0 : standing_pages,
                         .alignment = path.standing,
                         .in_flight = whole_pages(in_flight),
                         .kv_evicted = path.matched,
                         .prompt = match.prompt_tokens})};
  return found;
}

}  // namespace tasuki::cache
