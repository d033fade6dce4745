// The children of a node, found by their first page.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/ids.h"
#include "nodes/compact_vector.h"

namespace tasuki::cache {

// By what a child is found. Refers to the tokens. REQUIRES: page.size() == kPageTokens.
struct PageKey {
  PageKey(Tokens page);  // implicit: a page names itself

  Tokens tokens;
  std::uint64_t hash;
};

// first_token lets a scan for partial matches skip most children without touching their memory.
struct ChildEntry {
  std::uint64_t hash;  // of the child's first page
  Token first_token;
  NodeId node;
};

// Owns the entries, ordered by (hash, node). Several may have one hash. Costs one pointer while it
// is empty.
class ChildList {
 public:
  bool empty() const { return entries_.empty(); }
  std::size_t size() const { return entries_.size(); }
  const ChildEntry* begin() const { return entries_.begin(); }
  const ChildEntry* end() const { return entries_.end(); }

  void insert(NodeId child, const PageKey& first_page);
  void erase(NodeId child);

  // The first entry of that hash or a higher one. REQUIRES: there are children.
  const ChildEntry* first_from(std::uint64_t hash) const;
  // Where the entry would stand if hashes were spread exactly evenly. REQUIRES: there are children.
  const ChildEntry* expected_place(std::uint64_t hash) const {
    return begin() + static_cast<std::ptrdiff_t>((hash >> 32) * size() >> 32);
  }

 private:
  CompactVector<ChildEntry> entries_;
};

}  // namespace tasuki::cache
