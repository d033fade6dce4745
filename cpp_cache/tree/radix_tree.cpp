#include "tree/radix_tree.h"

#include <algorithm>
#include <utility>

namespace tasuki::cache {

namespace {

// Request memory before it is needed. In a large tree nearly every node is cold, and a comparison
// would wait line by line. Inline, because compilers drop calls with only a prefetch.
[[gnu::always_inline]] inline void prefetch(const void* from, std::size_t bytes) {
  constexpr std::size_t kLine = 64;
  for (std::size_t at = 0; at < bytes; at += kLine) {
    __builtin_prefetch(static_cast<const char*>(from) + at);
  }
}

std::int64_t length(const Tail& tail) { return static_cast<std::int64_t>(tail.tokens.size()); }

constexpr std::size_t kMostAhead = 8192;  // bytes of a run

// Limit of nodes visited to find the end of a long prompt.
constexpr std::size_t kMostFollowed = 64;

}  // namespace

RadixTree::RadixTree(std::unique_ptr<EvictionPolicy> policy, const CacheConfig& shape)
    : ghosts_(shape.max_ghost_nodes),
      homes_(shape),
      candidates_(std::move(policy), nodes_, shape),
      pins_(nodes_, candidates_) {}

std::optional<NodeId> RadixTree::root(std::string_view salt) const {
  const auto found = roots_.find(salt);
  if (found == roots_.end()) return std::nullopt;
  return found->second;
}

void RadixTree::expect_child(const Node& parent, const PageKey& page) const {
  __builtin_prefetch(parent.children.expected_place(page.hash));
  __builtin_prefetch(parent.ghost_children.expected_place(page.hash));
}

std::optional<NodeId> RadixTree::find_child(const Node& parent, const PageKey& page) const {
  const auto is_it = [&](NodeId id) {
    const Node& child = node(id);
    prefetch(&child, sizeof child);
    __builtin_prefetch(child.children.expected_place(0));
    prefetch(child.tokens.data(), std::min(child.tokens.size() * sizeof(Token), kMostAhead));
    return std::ranges::equal(child.first_page(), page.tokens);
  };
  const auto child = parent.children.find(page.hash, is_it);
  return child ? child : parent.ghost_children.find(page.hash, is_it);
}

std::int64_t RadixTree::common_with_child(const Node& parent, Tokens run) const {
  const auto child = parent.first_pages.nearest(run);
  return child ? common_tokens(node(*child).first_page(), run) : 0;
}

std::optional<NodeId> RadixTree::first_child(const Node& parent) const {
  const ChildList& standing = parent.children;
  const ChildList& gone = parent.ghost_children;
  if (standing.empty() && gone.empty()) return std::nullopt;
  if (standing.empty()) return (*gone.begin()).node;
  if (gone.empty()) return (*standing.begin()).node;
  return std::min(*standing.begin(), *gone.begin()).node;
}

Position RadixTree::cover(NodeId id, std::int64_t depth) const {
  const Node* current = &node(id);
  while (!current->is_root() && current->start() >= depth) current = &node(*current->parent);
  return {current->id, depth};
}

std::vector<PageId> RadixTree::pages_to(Position end, std::int64_t spare) const {
  std::vector<PageId> pages;
  pages.reserve(static_cast<std::size_t>(end.depth / kPageTokens + spare));
  pages.resize(static_cast<std::size_t>(end.depth / kPageTokens));
  std::int64_t depth = end.depth;
  for (const Node* current = &node(cover(end.node, depth).node); depth > 0;
       current = &node(*current->parent)) {
    const std::int64_t count = (depth - current->start()) / kPageTokens;
    std::copy_n(current->pages.begin(), count, pages.begin() + current->start() / kPageTokens);
    depth = current->start();
  }
  return pages;
}

std::vector<Token> RadixTree::tokens_to(Position end) const {
  std::vector<Token> tokens(static_cast<std::size_t>(end.depth));
  std::int64_t depth = end.depth;
  for (const Node* current = &node(cover(end.node, depth).node); depth > 0;
       current = &node(*current->parent)) {
    std::copy_n(current->tokens.begin(), depth - current->start(),
                tokens.begin() + current->start());
    depth = current->start();
  }
  return tokens;
}

std::optional<std::int64_t> RadixTree::long_prompt_through(Position position) const {
  const Node* node = &this->node(position.node);
  // At a fork, or a path's end, no request leaves for the first time.
  const std::size_t ways = node->children.size() + node->ghost_children.size();
  if (position.depth == node->depth && ways != 1) return std::nullopt;
  for (std::size_t step = 0; step < kMostFollowed; ++step) {
    if (node->long_prompt_beyond && node->depth >= position.depth) {
      return node->depth + *node->long_prompt_beyond;
    }
    const auto child = first_child(*node);
    if (!child) return std::nullopt;
    node = &this->node(*child);
  }
  return std::nullopt;
}

NodeId RadixTree::open_root(std::string_view salt) {
  if (const auto existing = root(salt)) return *existing;
  Node& node = nodes_.make();
  node.salt = std::make_unique<const std::string>(salt);
  node.depth = 0;
  node.resident = true;
  roots_.emplace(std::string(salt), node.id);
  return node.id;
}

void RadixTree::close_root_if_bare(NodeId id) {
  const Node& root = node(id);
  if (!root.is_bare() || !root.allocations.empty()) return;
  roots_.erase(*root.salt);
  drop_node(id);
}

NodeId RadixTree::add_child(NodeId parent_id, Tokens run, std::vector<PageId> pages, Tick now) {
  Node& child = nodes_.make();
  Node& parent = at(parent_id);
  child.parent = parent_id;
  child.tokens.assign(run.begin(), run.end());
  child.page_hash = PageKey(child.first_page()).hash;
  child.depth = parent.depth + static_cast<std::int64_t>(run.size());
  child.pages = std::move(pages);
  child.resident = true;
  child.last_use = now;
  candidates_.withdraw(parent);
  hang(parent, child);
  candidates_.list(parent);
  ++resident_nodes_;
  pages_ += static_cast<std::int64_t>(child.pages.size());
  homes_.put(child);
  candidates_.list(child);
  if (parent.resident_children() == 2) candidates_.weigh_below(parent);
  return child.id;
}

NodeId RadixTree::add_child_below(NodeId parent_id, Tokens run, Tick now) {
  Node& child = nodes_.make();
  Node& parent = at(parent_id);
  child.parent = parent_id;
  child.tokens.assign(run.begin(), run.end());
  child.page_hash = PageKey(child.first_page()).hash;
  child.depth = parent.depth + static_cast<std::int64_t>(run.size());
  child.last_use = now;
  candidates_.withdraw(parent);
  hang(parent, child);
  candidates_.list(parent);
  return child.id;
}

TailId RadixTree::add_tail_below(NodeId id, Tokens tokens) {
  const auto tail = static_cast<TailId>(next_tail_++);
  Node& node = at(id);
  candidates_.withdraw(node);
  node.tails.add_gone({tail, {tokens.begin(), tokens.end()}, std::nullopt, std::nullopt});
  candidates_.list(node);
  return tail;
}

void RadixTree::hang(Node& parent, const Node& child) {
  if (!child.resident) {
    parent.ghost_children.insert(child.id, child.page_hash);
    return;
  }
  parent.children.insert(child.id, child.page_hash);
  parent.first_pages.insert(child.first_page(), child.id,
                            [this](NodeId other) { return node(other).first_page(); });
}

void RadixTree::unhang(Node& parent, const Node& child) {
  if (!child.resident) {
    parent.ghost_children.erase(child.id, child.page_hash);
    return;
  }
  parent.children.erase(child.id, child.page_hash);
  parent.first_pages.erase(child.first_page());
}

bool RadixTree::growable(const Node& node) const {
  return !node.is_root() && node.resident && node.is_bare() && !node.checkpoint &&
         !node.checkpoint_evicted && node.kv_below == 0;
}

void RadixTree::grow(NodeId leaf, Tokens run, const std::vector<PageId>& pages, Tick now) {
  Node& node = at(leaf);
  candidates_.withdraw(node);
  node.tokens.insert(node.tokens.end(), run.begin(), run.end());
  node.pages.insert(node.pages.end(), pages.begin(), pages.end());
  node.depth += static_cast<std::int64_t>(run.size());
  node.last_use = now;
  pages_ += static_cast<std::int64_t>(pages.size());
  pins_.grew(node, static_cast<std::int64_t>(pages.size()));
  for (const PageId page : pages) homes_.put(page, leaf);
  candidates_.list(node);
}

NodeId RadixTree::split(NodeId id, std::int64_t depth) {
  Node& upper = nodes_.make();
  Node& lower = at(id);
  Node& parent = at(*lower.parent);
  const std::int64_t cut = depth - lower.start();
  unhang(parent, lower);
  upper.parent = lower.parent;
  upper.depth = depth;
  upper.resident = lower.resident;
  upper.kv_below = lower.kv_below;
  upper.last_use = lower.last_use;
  upper.tokens.assign(lower.tokens.begin(), lower.tokens.begin() + cut);
  upper.page_hash = lower.page_hash;
  lower.tokens.erase(lower.tokens.begin(), lower.tokens.begin() + cut);
  lower.page_hash = PageKey(lower.first_page()).hash;
  if (lower.resident) {
    const std::int64_t pages = cut / kPageTokens;
    upper.pages.assign(lower.pages.begin(), lower.pages.begin() + pages);
    lower.pages.erase(lower.pages.begin(), lower.pages.begin() + pages);
    homes_.put(upper);
    ++resident_nodes_;
  } else if (lower.is_ghost()) {
    upper.ghost_since = lower.ghost_since;
    ghosts_.remove({lower.ghost_since, id, std::nullopt}, cut + lower.depth - depth);
    ghosts_.add({lower.ghost_since, id, std::nullopt}, lower.depth - depth);
    ghosts_.add({upper.ghost_since, upper.id, std::nullopt}, cut);
  }
  upper.protected_children = lower.is_protected() ? 1 : 0;
  lower.parent = upper.id;
  hang(parent, upper);
  hang(upper, lower);
  return upper.id;
}

void RadixTree::revive(NodeId ghost, std::vector<PageId> pages, Tick now) {
  Node& node = at(ghost);
  Node& parent = at(*node.parent);
  if (node.is_ghost()) {
    ghosts_.remove({node.ghost_since, ghost, std::nullopt}, node.depth - node.start());
  }
  candidates_.withdraw(parent);
  unhang(parent, node);
  node.resident = true;
  hang(parent, node);
  candidates_.list(parent);
  node.pages = std::move(pages);
  node.last_use = now;
  ++resident_nodes_;
  pages_ += static_cast<std::int64_t>(node.pages.size());
  homes_.put(node);
  candidates_.list(node);
  if (parent.resident_children() == 2) candidates_.weigh_below(parent);
}

void RadixTree::attach_checkpoint(NodeId id, SlotId slot, const Birth& birth, Tick now) {
  Node& node = at(id);
  candidates_.withdraw(node);
  policy().born({id, std::nullopt}, birth);
  node.checkpoint = Checkpoint{slot, birth.kind, node.depth, now};
  node.checkpoint_evicted = false;
  node.last_use = now;
  ++states_;
  candidates_.list(node);
  candidates_.weigh_below(node);
}

TailId RadixTree::attach_tail(NodeId id, Tokens tokens, PageId page, SlotId slot,
                              const Birth& birth, Tick now) {
  Node& node = at(id);
  candidates_.withdraw(node);
  const Tail* gone = node.tails.find(tokens);
  if (gone != nullptr && gone->is_ghost()) {
    forget_tail(node, *gone);
    gone = nullptr;
  }
  const auto boundary = node.depth + static_cast<std::int64_t>(tokens.size());
  const TailId tail = gone != nullptr ? gone->id : static_cast<TailId>(next_tail_++);
  const Checkpoint state{slot, birth.kind, boundary, now};
  policy().born({id, tail}, birth);
  if (gone != nullptr) {
    node.tails.revive(tail, page, state);
  } else {
    node.tails.add({tail, {tokens.begin(), tokens.end()}, page, state});
  }
  ++states_;
  ++pages_;
  homes_.put(page, id);
  candidates_.list(node, tail);
  candidates_.weigh_below(node);
  return tail;
}

void RadixTree::touch(const StateKey& state, Tick now) {
  Node& node = at(state.node);
  candidates_.withdraw(node, state.tail);
  node.state(state.tail).last_use = now;
  node.state(state.tail).probationary = false;
  candidates_.list(node, state.tail);
}

void RadixTree::put_on_probation(const StateKey& state) {
  Node& node = at(state.node);
  candidates_.withdraw(node, state.tail);
  node.state(state.tail).probationary = true;
  candidates_.list(node, state.tail);
}

void RadixTree::weigh_again(NodeId id) {
  Node& node = at(id);
  if (!node.tails.empty()) node.tails.set_weighed(std::nullopt);
}

void RadixTree::expect_no_use(const StateKey& state) {
  const Node& host = node(state.node);
  const Tail* tail = state.tail ? host.tails.find(*state.tail) : nullptr;
  if (state.tail ? tail == nullptr || !tail->resident() : !host.checkpoint.has_value()) return;
  policy().ended(state);
  put_on_probation(state);
}

bool RadixTree::movable(PageId page) const {
  const Node& home = node(homes_.of(page));
  const Tail* const tail = home.tails.find(page);
  return tail == nullptr ? !home.is_protected() : tail->state->pins == 0;
}

void RadixTree::move_page(PageId from, PageId to) {
  Node& home = at(homes_.of(from));
  if (home.tails.find(from) != nullptr) {
    home.tails.move_page(from, to);
  } else {
    *std::ranges::find(home.pages, from) = to;
  }
  homes_.put(to, home.id);
}

Freed RadixTree::evict(const EvictionItem& item, Tick now) {
  Freed freed;
  Node& node = at(item.node);
  // Its pages go with or soon after its state, and are found by its tokens.
  __builtin_prefetch(node.tokens.data());
  candidates_.withdraw(node, item.tail);
  switch (item.kind) {
    case EvictionKind::kCheckpoint:
      freed.slot = node.checkpoint->slot;
      if (node.checkpoint_below.tiers == 0) {
        candidates_.pass_on_checkpoint(node);
        node.checkpoint_evicted = true;
      }
      node.checkpoint.reset();
      --states_;
      candidates_.weigh_below(node);
      break;
    case EvictionKind::kTail: {
      const Tail& tail = *node.tails.find(*item.tail);
      const bool is_lost = tail.below.tiers == 0;
      if (is_lost) candidates_.pass_on_tail(node, *item.tail);
      const auto [page, slot] = node.tails.evict(*item.tail, now);
      freed.pages.push_back(page);
      freed.slot = slot;
      if (is_lost) ghosts_.add({now, node.id, item.tail}, length(tail));
      --states_;
      --pages_;
      candidates_.weigh_below(node);
      break;
    }
    case EvictionKind::kLeafPages: {
      Node& parent = at(*node.parent);
      candidates_.withdraw(parent);
      unhang(parent, node);
      node.resident = false;
      hang(parent, node);
      candidates_.list(parent);
      freed.pages = std::exchange(node.pages, {});
      if (node.is_ghost()) become_ghost(node, now);
      --resident_nodes_;
      pages_ -= static_cast<std::int64_t>(freed.pages.size());
      if (parent.resident_children() == 1) candidates_.weigh_below(parent);
      break;
    }
  }
  candidates_.list(node);
  trim_ghosts();
  return freed;
}

void RadixTree::become_ghost(Node& node, Tick now) {
  node.ghost_since = now;
  ghosts_.add({now, node.id, std::nullopt}, node.depth - node.start());
}

void RadixTree::set_kv_below(NodeId id, TierBits tiers, Tick now) {
  Node& node = at(id);
  if (node.is_ghost() && tiers != 0) {
    // Another node wrote a copy to a tier.
    const Ghost ghost{node.ghost_since, id, std::nullopt};
    if (ghosts_.contains(ghost)) ghosts_.remove(ghost, node.depth - node.start());
  }
  node.kv_below = tiers;
  if (!node.is_ghost()) return;
  become_ghost(node, now);
  trim_ghosts();
}

StateBelow RadixTree::state_below(const StateKey& state) const {
  const Node& host = node(state.node);
  if (!state.tail) return host.checkpoint_below;
  const Tail* const tail = host.tails.find(*state.tail);
  return tail == nullptr ? StateBelow{} : tail->below;
}

bool RadixTree::is_resident(const StateKey& state) const {
  const Node& host = node(state.node);
  if (!state.tail) return host.checkpoint.has_value();
  const Tail* const tail = host.tails.find(*state.tail);
  return tail != nullptr && tail->resident();
}

void RadixTree::set_state_below(const StateKey& state, StateBelow below, Tick now) {
  Node& node = at(state.node);
  candidates_.withdraw(node, state.tail);
  if (state.tail) {
    const Tail& tail = *node.tails.find(*state.tail);
    const Ghost ghost{tail.ghost_since, node.id, state.tail};
    if (tail.is_ghost() && below.tiers != 0 && ghosts_.contains(ghost)) {
      ghosts_.remove(ghost, length(tail));
    }
    node.tails.set_below(*state.tail, below);
  } else {
    node.checkpoint_below = below;
    if (below.tiers != 0) node.checkpoint_evicted = false;
  }
  if (below.tiers == 0 && !is_resident(state)) {
    if (state.tail) {
      node.tails.mark_ghost(*state.tail, now);
      ghosts_.add({now, node.id, state.tail}, length(*node.tails.find(*state.tail)));
    } else {
      node.checkpoint_evicted = true;
    }
  }
  candidates_.list(node, state.tail);
  trim_ghosts();
}

void RadixTree::drop_node(NodeId id) {
  const Node& gone = node(id);
  policy().forgotten({id, std::nullopt});
  if (!gone.is_root()) unhang(at(*gone.parent), gone);
  nodes_.drop(id);
}

void RadixTree::forget(const Ghost& ghost) {
  NodeId top = ghost.node;
  std::optional<NodeId> parent = node(top).parent;
  if (ghost.tail) {
    Node& host = at(ghost.node);
    forget_tail(host, *host.tails.find(*ghost.tail));
    parent = host.id;
  } else {
    forget_subtree(top);
  }
  if (parent && node(*parent).is_root()) close_root_if_bare(*parent);
}

void RadixTree::forget_tail(Node& host, const Tail& ghost) {
  ghosts_.remove({ghost.ghost_since, host.id, ghost.id}, length(ghost));
  policy().forgotten({host.id, ghost.id});
  host.tails.forget(ghost.id);
}

void RadixTree::forget_subtree(NodeId id) {
  // Iterative: chains of ghosts may be as long as there are turns.
  std::vector<NodeId> order{id};
  for (std::size_t next = 0; next < order.size(); ++next) {
    for (const ChildEntry child : node(order[next]).ghost_children) order.push_back(child.node);
  }
  for (auto each = order.rbegin(); each != order.rend(); ++each) {
    const Node& gone = node(*each);
    for (const auto& [tail, ghost] : gone.tails) {
      ghosts_.remove({ghost.ghost_since, gone.id, tail}, length(ghost));
      policy().forgotten({gone.id, tail});
    }
    ghosts_.remove({gone.ghost_since, gone.id, std::nullopt}, gone.depth - gone.start());
    drop_node(*each);
  }
}

void RadixTree::trim_ghosts() {
  while (const auto ghost = ghosts_.excess()) forget(*ghost);
}

void RadixTree::forget_ghosts() {
  while (const auto ghost = ghosts_.oldest()) forget(*ghost);
  nodes_.for_each([this](const Node& node) {
    if (!node.checkpoint_evicted) return;
    at(node.id).checkpoint_evicted = false;
    policy().forgotten({node.id, std::nullopt});
  });
}

}  // namespace tasuki::cache
