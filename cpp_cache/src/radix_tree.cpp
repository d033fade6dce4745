// Structure: roots, edges, splits. What hangs on nodes is in residency.cpp.
#include "cpp_cache/radix_tree.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace tasuki::cache {

namespace {

// FNV-1a over words in four lanes that do not wait for each other, finished so that low bits depend
// on all tokens.
std::uint64_t page_hash(Tokens page) {
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

Tokens first_page(const Node& node) {
  return Tokens(node.tokens).first(static_cast<std::size_t>(kPageTokens));
}

bool before(const ChildEntry& left, const ChildEntry& right) {
  return std::tie(left.hash, left.node) < std::tie(right.hash, right.node);
}

void insert_child(Node& parent, const Node& child) {
  const ChildEntry entry{page_hash(first_page(child)), child.tokens.front(), child.id};
  parent.children.insert(
      std::lower_bound(parent.children.begin(), parent.children.end(), entry, before), entry);
}

void erase_child(Node& parent, NodeId child) {
  parent.children.erase_if([child](const ChildEntry& entry) { return entry.node == child; });
}

}  // namespace

RadixTree::RadixTree(std::unique_ptr<EvictionPolicy> policy, const TreeConfig& shape)
    : shape_(shape),
      policy_(std::move(policy)),
      ghosts_(shape.max_ghost_nodes),
      homes_(static_cast<std::size_t>(shape.slabs * shape.pages_per_slab)) {}

bool RadixTree::alive(NodeId id, std::uint64_t serial) const {
  const auto& slot = nodes_[static_cast<std::size_t>(raw(id))];
  return slot != nullptr && slot->serial == serial;
}

std::optional<NodeId> RadixTree::root(std::string_view salt) const {
  const auto found = roots_.find(salt);
  if (found == roots_.end()) return std::nullopt;
  return found->second;
}

std::optional<NodeId> RadixTree::find_child(const Node& parent, Tokens page) const {
  if (parent.children.empty()) return std::nullopt;
  const std::uint64_t hash = page_hash(page);
  auto entry =
      std::lower_bound(parent.children.begin(), parent.children.end(), hash,
                       [](const ChildEntry& child, std::uint64_t key) { return child.hash < key; });
  for (; entry != parent.children.end() && entry->hash == hash; ++entry) {
    if (std::ranges::equal(first_page(node(entry->node)), page)) return entry->node;
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
  Node& node = new_node();
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
  Node& child = new_node();
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
  Node& upper = new_node();
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

Node& RadixTree::new_node() {
  NodeId id{};
  if (spare_ids_.empty()) {
    id = static_cast<NodeId>(nodes_.size());
    nodes_.emplace_back();
  } else {
    id = spare_ids_.back();
    spare_ids_.pop_back();
  }
  auto& slot = nodes_[static_cast<std::size_t>(raw(id))];
  slot = std::make_unique<Node>();
  slot->id = id;
  slot->serial = next_serial_++;
  return *slot;
}

void RadixTree::drop_node(NodeId id) {
  const Node& gone = node(id);
  policy_->forgotten({id, std::nullopt});
  if (!gone.is_root()) erase_child(at(*gone.parent), id);
  nodes_[static_cast<std::size_t>(raw(id))].reset();
  spare_ids_.push_back(id);
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
  for (const auto& node : nodes_) {
    if (!node || !node->checkpoint_evicted) continue;
    node->checkpoint_evicted = false;
    policy_->forgotten({node->id, std::nullopt});
  }
}

}  // namespace tasuki::cache
