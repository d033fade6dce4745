// One run of page-aligned tokens in the radix tree, with the entries at its end.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/ids.h"
#include "nodes/child_list.h"
#include "nodes/compact_vector.h"
#include "nodes/run_trie.h"
#include "nodes/tail_list.h"

namespace tasuki::cache {

struct Node {
  NodeId id{};
  std::optional<NodeId> parent{};  // nullopt: a root
  std::int32_t protected_children = 0;
  std::uint64_t serial = 0;  // never reused; tells a cursor whether `id` is still its node
  std::unique_ptr<const std::string> salt;  // set in a root
  std::vector<Token> tokens;                // tokens of the edge; empty in a root
  std::vector<PageId> pages;                // pages in the arena
  std::int64_t depth = 0;                   // tokens from the root to this node's end
  std::optional<Checkpoint> checkpoint{};
  bool resident = false;            // in the arena
  bool checkpoint_evicted = false;  // the state at the end was evicted
  TierBits kv_below = 0;            // tiers below the arena with the run's KV
  StateBelow checkpoint_below{};    // tiers with the state at its end
  // Length of a long first-seen prompt from here to its end.
  std::optional<std::uint16_t> long_prompt_beyond;
  TailList tails;
  ChildList children;                       // resident children
  ChildList ghost_children;                 // other children: ghosts, or below the arena
  RunTrie<NodeId> first_pages;              // first pages of the resident children
  CompactVector<AllocationId> allocations;  // allocations with a path that ends inside this node
  std::uint64_t page_hash = 0;              // hash of its first page: see PageKey
  Tick last_use = 0;
  Tick ghost_since = 0;

  std::int64_t start() const { return depth - static_cast<std::int64_t>(tokens.size()); }
  bool is_root() const { return !parent.has_value(); }
  // Return true if it holds KV in no place and is only remembered.
  bool is_ghost() const { return !resident && kv_below == 0; }
  // Return true if an allocation here or below needs this node's KV.
  bool is_protected() const { return !allocations.empty() || protected_children > 0; }
  // REQUIRES: no root.
  Tokens first_page() const { return Tokens(tokens).first(static_cast<std::size_t>(kPageTokens)); }
  std::int64_t resident_children() const { return static_cast<std::int64_t>(children.size()); }
  // Return true if it has neither children nor tails, not even ghosts.
  bool is_bare() const { return children.empty() && ghost_children.empty() && tails.empty(); }
  // Return the state at its end, or at the end of the tail. REQUIRES: it exists.
  const Checkpoint& state(const std::optional<TailId>& tail) const;
  Checkpoint& state(const std::optional<TailId>& tail);
};

// A point on a path: `depth` tokens from the root, inside or at the end of `node`.
struct Position {
  NodeId node;
  std::int64_t depth;
};

}  // namespace tasuki::cache
