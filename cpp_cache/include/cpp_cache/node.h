// One run of page-aligned tokens in the radix tree, and what hangs on its end.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cpp_cache/compact_vector.h"
#include "cpp_cache/ids.h"
#include "cpp_cache/match.h"

namespace tasuki::cache {

// The state of all GDN layers after exactly `boundary` tokens of its path. Immutable once
// published.
struct Checkpoint {
  SlotId slot;
  CheckpointKind kind;
  std::int64_t boundary;
  Tick last_use;
  bool probationary = false;  // see EvictionItem
  std::int32_t pins = 0;      // leases that fork from it (of a tail: or whose page it took)
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

// first_token lets a scan for partial matches skip most children without touching their memory.
struct ChildEntry {
  std::uint64_t hash;  // of the child's first page
  Token first_token;
  NodeId node;
};

struct Node {
  NodeId id{};
  std::optional<NodeId> parent{};  // nullopt: a root
  std::uint64_t serial = 0;  // never reused: tells a cursor whether `id` is still the node it knew
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
  CompactVector<ChildEntry> children;  // by (hash, node)
  CompactVector<LeaseId> lessees;      // leases whose path ends inside this node
  std::int32_t protected_children = 0;
  std::int32_t resident_children = 0;
  Tick last_use = 0;
  Tick ghost_since = 0;

  std::int64_t start() const { return depth - static_cast<std::int64_t>(tokens.size()); }
  bool is_root() const { return !parent.has_value(); }
  // A lease needs this node's KV: it stands here or below.
  bool is_protected() const { return !lessees.empty() || protected_children > 0; }
  std::int64_t resident_tails() const;
  const Tail* find_tail(TailId id) const;
};

// A point on a path: `depth` tokens from the root, inside or at the end of `node`.
struct Position {
  NodeId node;
  std::int64_t depth;
};

// Where a state stands: at the end of `node`, or at the end of one of its tails.
struct StateRef {
  NodeId node;
  std::optional<TailId> tail;
};

}  // namespace tasuki::cache
