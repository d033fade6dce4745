#include "cache/inserter.h"

#include <algorithm>
#include <utility>

#include "core/common_tokens.h"

namespace tasuki::cache {

NodeId Inserter::insert_path(Allocation& allocation, std::int64_t end, Tick now) {
  Position place = tree_.cover(allocation.standing.node, allocation.standing.depth);
  while (place.depth < end) {
    const Node& node = tree_.node(place.node);
    if (place.depth < node.depth) {
      const std::int64_t stop = std::min(node.depth, end);
      const Tokens edge =
          Tokens(node.tokens).subspan(static_cast<std::size_t>(place.depth - node.start()));
      const std::int64_t same =
          common_tokens(edge, allocation.run(place.depth, stop)) / kPageTokens * kPageTokens;
      place.depth += same;
      if (place.depth < stop) place.node = split(place.node, place.depth, now);
      continue;
    }
    const auto child =
        tree_.find_child(node, allocation.run(place.depth, place.depth + kPageTokens));
    if (child && tree_.node(*child).resident) {
      place.node = *child;
      // Its first page is known to be equal. The next iteration compares the rest of the edge.
      continue;
    }
    if (child) {
      const Node& ghost = tree_.node(*child);
      const std::int64_t stop = std::min(ghost.depth, end);
      const std::int64_t same = common_tokens(ghost.tokens, allocation.run(place.depth, stop)) /
                                kPageTokens * kPageTokens;
      const std::int64_t revived = place.depth + same;
      place.node = revived < ghost.depth ? split(*child, revived, now) : *child;
      tree_.revive(place.node, give_pages(allocation, place.depth, revived), now);
      observers_.stored(place.node, place.depth);
      place.depth = revived;
      continue;
    }
    const Tokens run = allocation.run(place.depth, end);
    std::vector<PageId> pages = give_pages(allocation, place.depth, end);
    if (tree_.growable(node)) {
      tree_.grow(place.node, run, pages, now);
    } else {
      place.node = tree_.add_child(place.node, run, std::move(pages), now);
    }
    observers_.stored(place.node, place.depth);
    place.depth = end;
  }
  return place.node;
}

void Inserter::stored(const StateKey& state) {
  observers_.state_stored(state);
  if (tiers_ != nullptr) tiers_->state_stored(state);
}

NodeId Inserter::split(NodeId id, std::int64_t depth, Tick now) {
  const NodeId upper = tree_.split(id, depth);
  observers_.split(upper);
  if (tiers_ != nullptr) tiers_->split(upper);
  // Move allocations above the cut up, so matches ending there still meet them.
  const auto& standing = tree_.node(id).allocations;
  const std::vector<AllocationId> holders(standing.begin(), standing.end());
  for (const AllocationId holder : holders) {
    Allocation& allocation = allocations_.at(holder);
    if (allocation.standing.depth > depth) continue;
    tree_.pins().pin(upper, holder, now);
    tree_.pins().unpin(id, holder);
    allocation.standing.node = upper;
  }
  return upper;
}

std::vector<PageId> Inserter::give_pages(Allocation& allocation, std::int64_t from,
                                         std::int64_t to) {
  std::vector<PageId> pages;
  pages.reserve(static_cast<std::size_t>((to - from) / kPageTokens));
  for (std::int64_t i = from / kPageTokens; i < to / kPageTokens; ++i) {
    const auto logical = static_cast<std::size_t>(i);
    allocator_.hand_over(allocation.pages[logical], Owner::kWorking, Owner::kTree);
    pages.push_back(allocation.give_page(logical));
  }
  return pages;
}

NodeId Inserter::insert_state(Allocation& allocation, NodeId node, SlotId slot,
                              const InsertedState& state, Tick now) {
  node = host_of(node, state.boundary, now);
  const Birth birth{state.kind, state.hint, state.boundary, allocation.turns};
  const Node& host = tree_.node(node);
  allocation.give_slot(slot);
  const StateKey key = state.boundary == host.depth
                           ? insert_checkpoint(allocation, host, slot, birth, now)
                           : insert_tail(allocation, host, slot, birth, now);
  report(allocation, key, state);
  return node;
}

std::pair<NodeId, std::optional<PageId>> Inserter::insert_midway(Allocation& allocation,
                                                                 NodeId node, SlotId slot,
                                                                 const InsertedState& state,
                                                                 Tick now) {
  node = host_of(node, state.boundary, now);
  const Birth birth{state.kind, state.hint, state.boundary, allocation.turns};
  const Node& host = tree_.node(node);
  const Tokens tokens = allocation.run(host.depth, state.boundary);
  allocation.give_slot(slot);
  std::optional<PageId> taken;
  auto key = standing_tail(host, tokens, slot, now);
  if (!key) {
    std::vector<PageId> pages;
    allocator_.take_pages(1, pages);
    taken = pages.front();
    key = attach_tail(host, tokens, *taken, slot, birth, now);
  }
  report(allocation, *key, state);
  return {node, taken};
}

NodeId Inserter::host_of(NodeId node, std::int64_t boundary, Tick now) {
  const std::int64_t whole = boundary / kPageTokens * kPageTokens;
  return tree_.node(node).depth > whole ? split(node, whole, now) : node;
}

void Inserter::report(Allocation& allocation, const StateKey& key, const InsertedState& state) {
  reports_.inserted(allocation, key, state);
  if (allocation.is_sampled) allocation.inserted.push_back(state);
}

StateKey Inserter::insert_checkpoint(Allocation& allocation, const Node& host, SlotId slot,
                                     const Birth& birth, Tick now) {
  const StateKey key{host.id, std::nullopt};
  if (birth.kind == CheckpointKind::kPromptEnd) interior_.mark_prompt_end(allocation, host);
  if (host.checkpoint) {
    allocator_.give_back(slot, Owner::kWorking);
    tree_.touch(key, now);
    return key;
  }
  allocator_.hand_over(slot, Owner::kWorking, Owner::kTree);
  tree_.attach_checkpoint(host.id, slot, birth, now);
  stored(key);
  return key;
}

StateKey Inserter::insert_tail(Allocation& allocation, const Node& host, SlotId slot,
                               const Birth& birth, Tick now) {
  allocation.state = AllocationState::kClosed;
  const Tokens tokens = allocation.run(host.depth, birth.boundary);
  if (const auto same = standing_tail(host, tokens, slot, now)) return *same;
  const PageId page = allocation.give_page(static_cast<std::size_t>(host.depth / kPageTokens));
  const StateKey key = attach_tail(host, tokens, page, slot, birth, now);
  tree_.pins().pin_state(key);
  allocation.pinned_states.push_back(key);
  return key;
}

std::optional<StateKey> Inserter::standing_tail(const Node& host, Tokens tokens, SlotId slot,
                                                Tick now) {
  const Tail* const same = host.tails.find(tokens);
  if (same == nullptr || !same->resident()) return std::nullopt;
  const StateKey key{host.id, same->id};
  allocator_.give_back(slot, Owner::kWorking);
  tree_.touch(key, now);
  return key;
}

StateKey Inserter::attach_tail(const Node& host, Tokens tokens, PageId page, SlotId slot,
                               const Birth& birth, Tick now) {
  allocator_.hand_over(page, Owner::kWorking, Owner::kTree);
  allocator_.hand_over(slot, Owner::kWorking, Owner::kTree);
  const StateKey key{host.id, tree_.attach_tail(host.id, tokens, page, slot, birth, now)};
  stored(key);
  return key;
}

}  // namespace tasuki::cache
