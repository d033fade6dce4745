// Structure: roots, edges, splits. What hangs on nodes is in residency.cpp.
#include "cpp_cache/radix_tree.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace tasuki::cache {

namespace {

// FNV-1a over words in four lanes that do not wait for each other, finished so that low bits depend
// on all tokens.
std::uint64_t hash_of(Tokens page) {
  constexpr std::uint64_t kPrime = 0x100000001b3ULL;
  std::uint64_t lanes[4] = {0xcbf29ce484222325ULL, 0x84222325cbf29ce4ULL, 0x9ce484222325cbf2ULL,
                            0x2325cbf29ce48422ULL};
  for (std::size_t i = 0; i + 4 <= page.size(); i += 4) {
    for (std::size_t lane = 0; lane < 4; ++lane) {
      lanes[lane] = (lanes[lane] ^ static_cast<std::uint32_t>(page[i + lane])) * kPrime;
    }
  }
  std::uint64_t hash = 0;
  for (const std::uint64_t lane : lanes) hash = (hash ^ lane ^ (lane >> 32)) * kPrime;
  return hash ^ (hash >> 32);
}

// Asks for memory before it is needed: in a large tree nearly every node is cold, and a comparison
// would wait line by line. Inline, since a call that only prefetches counts as one without effect.
[[gnu::always_inline]] inline void prefetch(const void* from, std::size_t bytes) {
  constexpr std::size_t kLine = 64;
  for (std::size_t at = 0; at < bytes; at += kLine) {
    __builtin_prefetch(static_cast<const char*>(from) + at);
  }
}

constexpr std::size_t kMostAhead = 8192;  // bytes of a run

Tokens first_page(const Node& node) {
  return Tokens(node.tokens).first(static_cast<std::size_t>(kPageTokens));
}

bool before(const ChildEntry& left, const ChildEntry& right) {
  return std::tie(left.hash, left.node) < std::tie(right.hash, right.node);
}

// Where the entry would stand if hashes were spread exactly evenly. REQUIRES: there are children.
const ChildEntry* expected_place(const CompactVector<ChildEntry>& children, std::uint64_t hash) {
  return children.begin() + static_cast<std::ptrdiff_t>((hash >> 32) * children.size() >> 32);
}

// The first entry of that hash or a higher one. Hashes are spread evenly, so the search begins at
// the expected place and widens: in a large tree each step of a binary search waits for memory.
const ChildEntry* first_from(const CompactVector<ChildEntry>& children, std::uint64_t hash) {
  const ChildEntry* low = children.begin();
  const ChildEntry* high = children.end();
  const ChildEntry* const guess = expected_place(children, hash);
  std::ptrdiff_t step = 1;
  if (guess->hash < hash) {
    low = guess + 1;
    for (; high - low > step && low[step - 1].hash < hash; step *= 2) low += step;
    if (high - low > step) high = low + step;
  } else {
    high = guess;
    for (; high - low > step && high[-step].hash >= hash; step *= 2) high -= step;
    if (high - low > step) low = high - step;
  }
  return std::lower_bound(
      low, high, hash, [](const ChildEntry& child, std::uint64_t key) { return child.hash < key; });
}

void insert_child(Node& parent, const Node& child) {
  const ChildEntry entry{hash_of(first_page(child)), child.tokens.front(), child.id};
  parent.children.insert(
      std::lower_bound(parent.children.begin(), parent.children.end(), entry, before), entry);
}

void erase_child(Node& parent, NodeId child) {
  parent.children.erase_if([child](const ChildEntry& entry) { return entry.node == child; });
}

}  // namespace

PageKey::PageKey(Tokens page) : tokens(page), hash(hash_of(page)) {}

RadixTree::RadixTree(std::unique_ptr<EvictionPolicy> policy, const TreeConfig& shape)
    : shape_(shape),
      policy_(std::move(policy)),
      ghosts_(shape.max_ghost_nodes),
      homes_(static_cast<std::size_t>(shape.slabs * shape.pages_per_slab)) {}

std::optional<NodeId> RadixTree::root(std::string_view salt) const {
  const auto found = roots_.find(salt);
  if (found == roots_.end()) return std::nullopt;
  return found->second;
}

void RadixTree::expect_child(const Node& parent, const PageKey& page) const {
  if (!parent.children.empty()) __builtin_prefetch(expected_place(parent.children, page.hash));
}

std::optional<NodeId> RadixTree::find_child(const Node& parent, const PageKey& page) const {
  if (parent.children.empty()) return std::nullopt;
  for (const ChildEntry* entry = first_from(parent.children, page.hash);
       entry != parent.children.end() && entry->hash == page.hash; ++entry) {
    const Node& child = node(entry->node);
    prefetch(&child, sizeof child);
    __builtin_prefetch(child.children.begin());
    prefetch(child.tokens.data(), std::min(child.tokens.size() * sizeof(Token), kMostAhead));
    if (std::ranges::equal(first_page(child), page.tokens)) return entry->node;
  }
  return std::nullopt;
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
  if (!root.children.empty() || !root.tails.empty() || !root.lessees.empty()) return;
  roots_.erase(*root.salt);
  drop_node(id);
}

NodeId RadixTree::add_child(NodeId parent_id, Tokens run, std::vector<PageId> pages, Tick now) {
  Node& child = nodes_.make();
  Node& parent = at(parent_id);
  child.parent = parent_id;
  child.tokens.assign(run.begin(), run.end());
  child.depth = parent.depth + static_cast<std::int64_t>(run.size());
  child.pages = std::move(pages);
  child.resident = true;
  child.last_use = now;
  withdraw(parent);
  insert_child(parent, child);
  ++parent.resident_children;
  list(parent);
  ++resident_nodes_;
  pages_ += static_cast<std::int64_t>(child.pages.size());
  settle_pages(child);
  list(child);
  if (parent.resident_children == 2) weigh_below(parent);
  return child.id;
}

bool RadixTree::growable(const Node& node) const {
  return !node.is_root() && node.resident && node.children.empty() && node.tails.empty() &&
         !node.checkpoint && !node.checkpoint_evicted;
}

void RadixTree::grow(NodeId leaf, Tokens run, const std::vector<PageId>& pages, Tick now) {
  Node& node = at(leaf);
  withdraw(node);
  node.tokens.insert(node.tokens.end(), run.begin(), run.end());
  node.pages.insert(node.pages.end(), pages.begin(), pages.end());
  node.depth += static_cast<std::int64_t>(run.size());
  node.last_use = now;
  pages_ += static_cast<std::int64_t>(pages.size());
  if (node.is_protected()) protected_pages_ += static_cast<std::int64_t>(pages.size());
  for (const PageId page : pages) homes_[dense(page)] = leaf;
  list(node);
}

NodeId RadixTree::split(NodeId id, std::int64_t depth) {
  Node& upper = nodes_.make();
  Node& lower = at(id);
  Node& parent = at(*lower.parent);
  const std::int64_t cut = depth - lower.start();
  erase_child(parent, id);
  upper.parent = lower.parent;
  upper.depth = depth;
  upper.resident = lower.resident;
  upper.last_use = lower.last_use;
  upper.tokens.assign(lower.tokens.begin(), lower.tokens.begin() + cut);
  lower.tokens.erase(lower.tokens.begin(), lower.tokens.begin() + cut);
  if (lower.resident) {
    const std::int64_t pages = cut / kPageTokens;
    upper.pages.assign(lower.pages.begin(), lower.pages.begin() + pages);
    lower.pages.erase(lower.pages.begin(), lower.pages.begin() + pages);
    upper.resident_children = 1;
    settle_pages(upper);
    ++resident_nodes_;
  } else {
    upper.ghost_since = lower.ghost_since;
    ghosts_.remove({lower.ghost_since, id, std::nullopt}, cut + lower.depth - depth);
    ghosts_.add({lower.ghost_since, id, std::nullopt}, lower.depth - depth);
    ghosts_.add({upper.ghost_since, upper.id, std::nullopt}, cut);
  }
  upper.protected_children = lower.is_protected() ? 1 : 0;
  lower.parent = upper.id;
  insert_child(parent, upper);
  insert_child(upper, lower);
  return upper.id;
}

void RadixTree::revive(NodeId ghost, std::vector<PageId> pages, Tick now) {
  Node& node = at(ghost);
  Node& parent = at(*node.parent);
  ghosts_.remove({node.ghost_since, ghost, std::nullopt}, node.depth - node.start());
  withdraw(parent);
  ++parent.resident_children;
  list(parent);
  node.pages = std::move(pages);
  node.resident = true;
  node.last_use = now;
  ++resident_nodes_;
  pages_ += static_cast<std::int64_t>(node.pages.size());
  settle_pages(node);
  list(node);
  if (parent.resident_children == 2) weigh_below(parent);
}

void RadixTree::drop_node(NodeId id) {
  const Node& gone = node(id);
  policy_->forgotten({id, std::nullopt});
  if (!gone.is_root()) erase_child(at(*gone.parent), id);
  nodes_.drop(id);
}

void RadixTree::forget(const Ghost& ghost) {
  NodeId top = ghost.node;
  std::optional<NodeId> parent = node(top).parent;
  if (ghost.tail) {
    Node& host = at(ghost.node);
    const auto tokens = static_cast<std::int64_t>(tail_at(host, *ghost.tail).tokens.size());
    ghosts_.remove(ghost, tokens);
    policy_->forgotten({ghost.node, ghost.tail});
    host.tails.erase_if([&](const Tail& tail) { return tail.id == *ghost.tail; });
    parent = host.id;
  } else {
    forget_subtree(top);
  }
  if (parent && node(*parent).is_root()) close_root_if_bare(*parent);
}

void RadixTree::forget_subtree(NodeId id) {
  // Iterative: chains of ghosts may be as long as there are turns.
  std::vector<NodeId> order{id};
  for (std::size_t next = 0; next < order.size(); ++next) {
    for (const ChildEntry& child : node(order[next]).children) order.push_back(child.node);
  }
  for (auto each = order.rbegin(); each != order.rend(); ++each) {
    const Node& gone = node(*each);
    for (const Tail& tail : gone.tails) {
      ghosts_.remove({tail.ghost_since, gone.id, tail.id},
                     static_cast<std::int64_t>(tail.tokens.size()));
      policy_->forgotten({gone.id, tail.id});
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
    policy_->forgotten({node.id, std::nullopt});
  });
}

}  // namespace tasuki::cache
