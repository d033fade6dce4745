// What hangs on the nodes of a RadixTree: states, pins, eviction.
#include <algorithm>
#include <utility>

#include "cpp_cache/errors.h"
#include "cpp_cache/radix_tree.h"

namespace tasuki::cache {

std::int64_t Node::resident_tails() const {
  return std::ranges::count_if(tails, [](const Tail& tail) { return tail.resident(); });
}

const Tail* Node::find_tail(TailId id) const {
  const auto found = std::ranges::find(tails, id, &Tail::id);
  return found == tails.end() ? nullptr : &*found;
}

Tail& RadixTree::tail_at(Node& node, TailId id) {
  return *std::ranges::find(node.tails, id, &Tail::id);
}

Checkpoint& RadixTree::state_at(const StateRef& ref) {
  Node& node = at(ref.node);
  return ref.tail ? *tail_at(node, *ref.tail).state : *node.checkpoint;
}

const Checkpoint& RadixTree::state(const StateRef& ref) const {
  const Node& host = node(ref.node);
  return ref.tail ? *host.find_tail(*ref.tail)->state : *host.checkpoint;
}

void RadixTree::attach_checkpoint(NodeId id, SlotId slot, const Birth& birth, Tick now) {
  Node& node = at(id);
  withdraw(node);
  policy_->born({id, std::nullopt}, birth);
  node.checkpoint = Checkpoint{slot, birth.kind, node.depth, now};
  node.checkpoint_evicted = false;
  node.last_use = now;
  ++states_;
  list(node);
  weigh_below(node);
}

TailId RadixTree::attach_tail(NodeId id, Tokens tokens, PageId page, SlotId slot,
                              const Birth& birth, Tick now) {
  Node& node = at(id);
  withdraw(node);
  node.tails.erase_if([&](const Tail& tail) {
    if (tail.resident() || !std::ranges::equal(tail.tokens, tokens)) return false;
    ghosts_.remove({tail.ghost_since, id, tail.id}, static_cast<std::int64_t>(tokens.size()));
    policy_->forgotten({id, tail.id});
    return true;
  });
  const auto boundary = node.depth + static_cast<std::int64_t>(tokens.size());
  const auto tail = static_cast<TailId>(next_tail_++);
  policy_->born({id, tail}, birth);
  node.tails.push_back(Tail{
      tail, {tokens.begin(), tokens.end()}, page, Checkpoint{slot, birth.kind, boundary, now}});
  ++states_;
  ++pages_;
  homes_[dense(page)] = id;
  list(node);
  weigh_below(node);
  return tail;
}

void RadixTree::touch(const StateRef& ref, Tick now) {
  Node& node = at(ref.node);
  withdraw(node);
  state_at(ref).last_use = now;
  state_at(ref).probationary = false;
  list(node);
}

void RadixTree::put_on_probation(const StateRef& ref) {
  Node& node = at(ref.node);
  withdraw(node);
  state_at(ref).probationary = true;
  list(node);
}

void RadixTree::expect_no_use(const StateRef& ref) {
  const Node& host = node(ref.node);
  const Tail* tail = ref.tail ? host.find_tail(*ref.tail) : nullptr;
  if (ref.tail ? tail == nullptr || !tail->resident() : !host.checkpoint.has_value()) return;
  policy_->ended({ref.node, ref.tail});
  put_on_probation(ref);
}

void RadixTree::pin(NodeId id, LeaseId lease, Tick now) {
  Node& node = at(id);
  withdraw(node);
  const bool was_protected = node.is_protected();
  node.lessees.push_back(lease);
  node.last_use = now;
  if (!was_protected) protect(node);
  list(node);
}

void RadixTree::unpin(NodeId id, LeaseId lease) {
  Node& node = at(id);
  node.lessees.erase(std::ranges::find(node.lessees, lease));
  if (!node.is_protected()) unprotect(node);
  list(node);
}

void RadixTree::protect(Node& node) {
  // A node above a resident child is no candidate, so only the counts of the ancestors change.
  Node* current = &node;
  while (true) {
    protected_pages_ += static_cast<std::int64_t>(current->pages.size());
    if (current->is_root()) return;
    current = &at(*current->parent);
    const bool was_protected = current->is_protected();
    ++current->protected_children;
    if (was_protected) return;
  }
}

void RadixTree::unprotect(Node& node) {
  Node* current = &node;
  while (true) {
    protected_pages_ -= static_cast<std::int64_t>(current->pages.size());
    if (current->is_root()) return;
    current = &at(*current->parent);
    --current->protected_children;
    if (current->is_protected()) return;
  }
}

void RadixTree::pin_state(const StateRef& ref) {
  Node& node = at(ref.node);
  withdraw(node);
  if (state_at(ref).pins++ == 0) {
    ++pinned_states_;
    if (ref.tail) ++pinned_tail_pages_;
  }
  list(node);
}

void RadixTree::unpin_state(const StateRef& ref) {
  Node& node = at(ref.node);
  withdraw(node);
  if (--state_at(ref).pins == 0) {
    --pinned_states_;
    if (ref.tail) --pinned_tail_pages_;
  }
  list(node);
}

std::optional<EvictionItem> RadixTree::candidate(const Node& node) const {
  const bool bare_leaf = !node.is_root() && node.resident && !node.is_protected() &&
                         node.resident_children == 0 && !node.checkpoint &&
                         node.resident_tails() == 0;
  if (!bare_leaf) return std::nullopt;
  return EvictionItem{EvictionKind::kLeafPages, node.last_use, node.id, std::nullopt};
}

namespace {

EvictionItem item_of(const Node& node, const Checkpoint& state) {
  return {EvictionKind::kCheckpoint, state.last_use, node.id, std::nullopt, state.probationary};
}

EvictionItem item_of(const Node& node, const Tail& tail) {
  return {EvictionKind::kTail, tail.state->last_use, node.id, tail.id, tail.state->probationary};
}

}  // namespace

void RadixTree::withdraw(const Node& node) {
  if (const auto item = candidate(node)) policy_->remove(*item);
  if (node.checkpoint && node.checkpoint->pins == 0) {
    policy_->remove(item_of(node, *node.checkpoint));
  }
  for (const Tail& tail : node.tails) {
    if (tail.resident() && tail.state->pins == 0) policy_->remove(item_of(node, tail));
  }
}

void RadixTree::list(const Node& node) {
  if (const auto item = candidate(node)) policy_->add(*item);
  if (node.checkpoint && node.checkpoint->pins == 0) {
    policy_->add(item_of(node, *node.checkpoint), worth(node, *node.checkpoint, false));
  }
  for (const Tail& tail : node.tails) {
    if (tail.resident() && tail.state->pins == 0) {
      policy_->add(item_of(node, tail), worth(node, *tail.state, true));
    }
  }
}

bool RadixTree::lists(const Node& node, const Checkpoint& state) const {
  return policy_->contains(item_of(node, state));
}

bool RadixTree::lists(const Node& node, const Tail& tail) const {
  return policy_->contains(item_of(node, tail));
}

Freed RadixTree::evict(const EvictionItem& item, Tick now) {
  Freed freed;
  Node& node = at(item.node);
  withdraw(node);
  switch (item.kind) {
    case EvictionKind::kCheckpoint:
      freed.slots.push_back(node.checkpoint->slot);
      if (const auto heir = heir_of(node, false)) policy_->inherited({node.id, {}}, *heir);
      node.checkpoint.reset();
      node.checkpoint_evicted = true;
      --states_;
      weigh_below(node);
      break;
    case EvictionKind::kTail: {
      Tail& tail = tail_at(node, *item.tail);
      freed.pages.push_back(*tail.page);
      if (const auto heir = heir_of(node, true)) policy_->inherited({node.id, tail.id}, *heir);
      freed.slots.push_back(tail.state->slot);
      tail.page.reset();
      tail.state.reset();
      tail.ghost_since = now;
      ghosts_.add({now, node.id, tail.id}, static_cast<std::int64_t>(tail.tokens.size()));
      --states_;
      --pages_;
      weigh_below(node);
      break;
    }
    case EvictionKind::kLeafPages: {
      freed.pages = std::exchange(node.pages, {});
      node.resident = false;
      node.ghost_since = now;
      ghosts_.add({now, node.id, std::nullopt}, node.depth - node.start());
      --resident_nodes_;
      pages_ -= static_cast<std::int64_t>(freed.pages.size());
      Node& parent = at(*node.parent);
      withdraw(parent);
      --parent.resident_children;
      list(parent);
      if (parent.resident_children == 1) weigh_below(parent);
      break;
    }
  }
  list(node);
  trim_ghosts();
  return freed;
}

}  // namespace tasuki::cache
