// One run of page-aligned tokens in the radix tree, and what hangs on its end.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/checkpoint_kind.h"
#include "core/ids.h"
#include "nodes/child_list.h"
#include "nodes/compact_vector.h"

namespace tasuki::cache {

// The state of all GDN layers after exactly `boundary` tokens of its path. Immutable once
// inserted.
struct Checkpoint {
  SlotId slot;
  CheckpointKind kind;
  std::int64_t boundary;
  Tick last_use;
  bool probationary = false;  // see EvictionItem
  std::int32_t pins = 0;      // allocations that fork from it (of a tail: or whose page it took)
};

// Fewer than a page of tokens after a node's end: their KV in one page, and the state after the
// last.
struct Tail {
  TailId id;
  std::vector<Token> tokens;
  std::optional<PageId> page;       // nullopt: a ghost
  std::optional<Checkpoint> state;  // nullopt: a ghost
  Tick ghost_since = 0;

  bool resident() const { return page.has_value(); }
};

struct Node {
  NodeId id{};
  std::optional<NodeId> parent{};  // nullopt: a root
  std::uint64_t serial = 0;  // never reused: whether `id` is still the node that a cursor stood in
  std::unique_ptr<const std::string> salt;  // of a root
  std::vector<Token> tokens;                // of the edge; empty in a root
  std::vector<PageId> pages;                // empty in a ghost
  std::int64_t depth = 0;                   // tokens from the root to this node's end
  std::optional<Checkpoint> checkpoint{};
  bool resident = false;            // false: a ghost, which remembers that its KV stood here
  bool checkpoint_evicted = false;  // a state stood at the end and was evicted since
  // Tokens by which a long prompt that was first seen went on from here to its end.
  std::optional<std::uint16_t> long_prompt_beyond;
  CompactVector<Tail> tails;
  ChildList children;
  CompactVector<AllocationId> allocations;  // whose path ends inside this node
  std::int32_t protected_children = 0;
  std::int32_t resident_children = 0;
  Tick last_use = 0;
  Tick ghost_since = 0;

  std::int64_t start() const { return depth - static_cast<std::int64_t>(tokens.size()); }
  bool is_root() const { return !parent.has_value(); }
  // An allocation needs this node's KV: it stands here or below.
  bool is_protected() const { return !allocations.empty() || protected_children > 0; }
  // REQUIRES: no root.
  Tokens first_page() const { return Tokens(tokens).first(static_cast<std::size_t>(kPageTokens)); }
  std::int64_t resident_tails() const;
  const Tail* find_tail(TailId id) const;
  // REQUIRES: there is such a tail.
  Tail& tail(TailId id);
  // The state at its end, or at the end of the tail. REQUIRES: it stands.
  const Checkpoint& state(const std::optional<TailId>& tail) const;
  Checkpoint& state(const std::optional<TailId>& tail);
};

// A point on a path: `depth` tokens from the root, inside or at the end of `node`.
struct Position {
  NodeId node;
  std::int64_t depth;
};

}  // namespace tasuki::cache
