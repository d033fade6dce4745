// publish() of a HybridTree: what a lease computed becomes the tree's.
#include <algorithm>
#include <utility>

#include "cpp_cache/errors.h"
#include "cpp_cache/hybrid_tree.h"

namespace tasuki::cache {

bool HybridTree::holds_slot(const Lease& lease, SlotId slot) const {
  const auto among = [slot](const std::vector<SlotId>& slots) {
    return std::ranges::find(slots, slot) != slots.end();
  };
  return among(lease.working_slots) || among(lease.destination_slots);
}

void HybridTree::give_slot(Lease& lease, SlotId slot) {
  std::erase(lease.working_slots, slot);
  std::erase(lease.destination_slots, slot);
}

void HybridTree::publish(LeaseId id, std::int64_t boundary, std::optional<SlotId> slot,
                         CheckpointKind kind, TurnHint hint) {
  Lease& lease = working(id, "publish");
  const std::int64_t whole = boundary / kPageTokens * kPageTokens;
  const std::string where = "publish: boundary " + std::to_string(boundary);
  if (boundary < 1 || boundary > lease.tokens()) {
    throw InvalidArgument(where + " is not in the lease's tokens 1.." +
                          std::to_string(lease.tokens()));
  }
  if (boundary > lease.capacity_tokens()) {
    throw InvalidArgument(where + " is beyond the lease's pages: extend it first");
  }
  if (boundary != whole && !slot) {
    throw InvalidArgument(where + " is inside a page: it needs a slot");
  }
  if (boundary != whole && whole < lease.first_kept) {
    throw InvalidArgument(where + " ends before what the lease computed");
  }
  if (boundary != whole && !lease.own[static_cast<std::size_t>(whole / kPageTokens)]) {
    throw InvalidArgument(where + " is inside a page that the lease published whole already");
  }
  if (slot && !holds_slot(lease, *slot)) {
    throw InvalidArgument("publish: slot " + std::to_string(raw(*slot)) +
                          " is neither a working nor a destination slot of the lease");
  }
  ++clock_;
  ++room_version_;
  NodeId node = lease.root;
  if (whole > lease.standing.depth) {
    node = insert_path(lease, whole);
  } else if (whole > 0) {
    node = tree_.cover(lease.standing.node, whole).node;
  }
  if (slot) {
    if (tree_.node(node).depth > whole) node = split(node, whole);
    publish_state(lease, node, boundary, *slot, kind, hint);
    if (lease.is_sampled) lease.published.push_back({boundary, kind, hint});
  }
  if (whole >= lease.standing.depth) stand_at(lease, {node, whole});
  const auto count = static_cast<std::int64_t>(lease.pages.size());
  while (lease.shared_pages < count && !lease.own[static_cast<std::size_t>(lease.shared_pages)]) {
    ++lease.shared_pages;
  }
}

// Ensures that the tree holds [0, end) of the lease's tokens; returns the node whose edge holds
// `end`.
NodeId HybridTree::insert_path(Lease& lease, std::int64_t end) {
  Position place = tree_.cover(lease.standing.node, lease.standing.depth);
  while (place.depth < end) {
    const Node& node = tree_.node(place.node);
    if (place.depth < node.depth) {
      const std::int64_t stop = std::min(node.depth, end);
      const Tokens edge =
          Tokens(node.tokens).subspan(static_cast<std::size_t>(place.depth - node.start()));
      const std::int64_t same =
          common_tokens(edge, lease.run(place.depth, stop)) / kPageTokens * kPageTokens;
      place.depth += same;
      if (place.depth < stop) place.node = split(place.node, place.depth);
      continue;
    }
    const auto child = tree_.find_child(node, lease.run(place.depth, place.depth + kPageTokens));
    if (child && tree_.node(*child).resident) {
      place.node = *child;
      // Its first page is known to be equal: the edge is compared on the next turn.
      continue;
    }
    if (child) {
      const Node& ghost = tree_.node(*child);
      const std::int64_t stop = std::min(ghost.depth, end);
      const std::int64_t same =
          common_tokens(ghost.tokens, lease.run(place.depth, stop)) / kPageTokens * kPageTokens;
      const std::int64_t revived = place.depth + same;
      place.node = revived < ghost.depth ? split(*child, revived) : *child;
      tree_.revive(place.node, give_pages(lease, place.depth, revived), clock_);
      journal_.stored(place.node, place.depth);
      census_.stored(place.node, place.depth);
      place.depth = revived;
      continue;
    }
    const Tokens run = lease.run(place.depth, end);
    std::vector<PageId> pages = give_pages(lease, place.depth, end);
    if (tree_.growable(node)) {
      tree_.grow(place.node, run, pages, clock_);
    } else {
      place.node = tree_.add_child(place.node, run, std::move(pages), clock_);
    }
    journal_.stored(place.node, place.depth);
    census_.stored(place.node, place.depth);
    place.depth = end;
  }
  return place.node;
}

NodeId HybridTree::split(NodeId id, std::int64_t depth) {
  const NodeId upper = tree_.split(id, depth);
  journal_.split(upper);
  census_.split(upper);
  // A lease that stands above the cut moves up, so that matches which end there still meet it.
  const auto& standing = tree_.node(id).lessees;
  const std::vector<LeaseId> lessees(standing.begin(), standing.end());
  for (const LeaseId lessee : lessees) {
    Lease& lease = live(lessee);
    if (lease.standing.depth > depth) continue;
    tree_.pin(upper, lessee, clock_);
    tree_.unpin(id, lessee);
    lease.standing.node = upper;
  }
  return upper;
}

std::vector<PageId> HybridTree::give_pages(Lease& lease, std::int64_t from, std::int64_t to) {
  std::vector<PageId> pages;
  pages.reserve(static_cast<std::size_t>((to - from) / kPageTokens));
  for (std::int64_t i = from / kPageTokens; i < to / kPageTokens; ++i) {
    const auto logical = static_cast<std::size_t>(i);
    allocator_.hand_over(lease.pages[logical], Owner::kWorking, Owner::kTree);
    lease.own[logical] = false;
    pages.push_back(lease.pages[logical]);
  }
  return pages;
}

void HybridTree::publish_state(Lease& lease, NodeId node, std::int64_t boundary, SlotId slot,
                               CheckpointKind kind, TurnHint hint) {
  const Birth birth{kind, hint, boundary, lease.turns};
  const Node& host = tree_.node(node);
  give_slot(lease, slot);
  if (boundary == host.depth) {
    if (kind == CheckpointKind::kPromptEnd) note_long_prompt(lease, host);
    if (host.checkpoint) {
      allocator_.give_back(slot, Owner::kWorking);
      tree_.touch({node, std::nullopt}, clock_);
    } else {
      allocator_.hand_over(slot, Owner::kWorking, Owner::kTree);
      tree_.attach_checkpoint(node, slot, birth, clock_);
      journal_.state_stored({node, std::nullopt});
      census_.state_stored(node);
    }
    follow_up(lease, {node, std::nullopt}, boundary, kind, hint);
    return;
  }
  lease.state = LeaseState::kClosed;
  const Tokens tokens = lease.run(host.depth, boundary);
  const auto same = std::ranges::find_if(host.tails, [&](const Tail& tail) {
    return tail.resident() && std::ranges::equal(tail.tokens, tokens);
  });
  if (same != host.tails.end()) {
    allocator_.give_back(slot, Owner::kWorking);
    tree_.touch({node, same->id}, clock_);
    follow_up(lease, {node, same->id}, boundary, kind, hint);
    return;
  }
  const auto logical = static_cast<std::size_t>(host.depth / kPageTokens);
  const PageId page = lease.pages[logical];
  allocator_.hand_over(page, Owner::kWorking, Owner::kTree);
  allocator_.hand_over(slot, Owner::kWorking, Owner::kTree);
  lease.own[logical] = false;
  const StateRef ref{node, tree_.attach_tail(node, tokens, page, slot, birth, clock_)};
  journal_.state_stored(ref);
  census_.state_stored(node);
  tree_.pin_state(ref);
  lease.pinned_states.push_back(ref);
  follow_up(lease, ref, boundary, kind, hint);
}

void HybridTree::follow_up(Lease& lease, const StateRef& state, std::int64_t boundary,
                           CheckpointKind kind, TurnHint hint) {
  EvictionPolicy& policy = tree_.policy();
  const auto key = [](const StateRef& ref) { return StateKey{ref.node, ref.tail}; };
  if (lease.latest_state && key(*lease.latest_state) != key(state)) {
    policy.superseded(key(*lease.latest_state));
  }
  lease.latest_state = state;
  if (lease.cursor && kind == CheckpointKind::kTurnEnd) {
    const auto cursor = cursors_.find(*lease.cursor);
    if (cursor != cursors_.end()) {
      cursor->second.end = state;
      cursor->second.end_serial = tree_.node(state.node).serial;
    }
  }
  // Below half a slot's worth of tokens the slot saves less than the KV it displaces.
  const std::int64_t few = config_.pages_per_slab * kPageTokens / 2;
  if (boundary < few || kind == CheckpointKind::kInterior) tree_.put_on_probation(state);
  if (kind == CheckpointKind::kPromptEnd) lease.prompt_state = state;
  if (kind != CheckpointKind::kTurnEnd || !lease.prompt_state) return;
  if (hint != TurnHint::kUnknown) policy.hinted(key(*lease.prompt_state), hint);
  // Of a short answer's two ends either serves the next turn: its own end saves least.
  const Node& host = tree_.node(lease.prompt_state->node);
  if (!host.checkpoint || key(*lease.prompt_state) == key(state)) return;
  const bool is_short = boundary - host.depth < few;
  tree_.put_on_probation(is_short ? state : *lease.prompt_state);
}

void HybridTree::stand_at(Lease& lease, Position place) {
  const NodeId before = lease.standing.node;
  if (before != place.node) {
    tree_.pin(place.node, lease.id, clock_);
    tree_.unpin(before, lease.id);
  }
  lease.standing = place;
  if (!lease.cursor) return;
  const auto cursor = cursors_.find(*lease.cursor);
  if (cursor == cursors_.end()) return;  // closed while the lease ran
  cursor->second.place = place;
  cursor->second.serial = tree_.node(place.node).serial;
}

}  // namespace tasuki::cache
