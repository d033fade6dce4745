// Children of a node, found by their first page.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <utility>

#include "core/ids.h"

namespace tasuki::cache {

// Key of a child. Refers to the tokens. REQUIRES: page.size() == kPageTokens.
struct PageKey {
  PageKey(Tokens page);  // implicit: a page names itself

  Tokens tokens;
  std::uint64_t hash;
};

struct ChildEntry {
  std::uint64_t hash;  // hash of the child's first page
  NodeId node;

  auto operator<=>(const ChildEntry&) const = default;
};

// Owns the entries, in one piece of memory with their counts. Costs one pointer while it is empty.
// Several entries may have one hash. Iterators are invalid after any change.
//
// This is a hash table with the order of a list. An entry's home is its hash's position in an
// exactly even spread. So homes ascend as hashes do, and entries are in order.
//
// Invariants: a walk is in the order of (hash, node). An entry is at its home or behind it without
// a gap between. At most three of four places are used.
//
// Cost: insert, erase and find read the entries of one run without a gap. These are few for any
// number of children, as long as hashes are spread. The table grows by a third at once.
class ChildList {
 public:
  class Iterator;

  ChildList() = default;
  ChildList(ChildList&& other) noexcept : head_(std::exchange(other.head_, nullptr)) {}
  ChildList& operator=(ChildList&& other) noexcept {
    std::swap(head_, other.head_);
    return *this;
  }
  ~ChildList();

  bool empty() const { return head_ == nullptr; }
  std::size_t size() const { return head_ ? head_->size : 0; }
  Iterator begin() const;
  Iterator end() const;

  // hash: of the child's first page.
  void insert(NodeId child, std::uint64_t hash);
  // REQUIRES: the list has the child under this hash.
  void erase(NodeId child, std::uint64_t hash);

  // Return the first child of this hash with `is_it(child)`.
  template <typename IsIt>
  std::optional<NodeId> find(std::uint64_t hash, IsIt is_it) const {
    if (!head_) return std::nullopt;
    for (const Place* place = first_from(hash); place != stop() && place->holds(hash); ++place) {
      if (is_it(place->child())) return place->child();
    }
    return std::nullopt;
  }
  // Return the first address read by a search for this hash; nullptr: none.
  const void* expected_place(std::uint64_t hash) const {
    return head_ ? places() + home_of(hash) : nullptr;
  }

 private:
  // An entry, or a gap, in 12 bytes.
  struct Place {
    std::uint32_t high;
    std::uint32_t low;
    std::uint32_t taken : 1;
    std::uint32_t node : 31;

    std::uint64_t hash() const { return std::uint64_t{high} << 32 | low; }
    NodeId child() const { return static_cast<NodeId>(node); }
    ChildEntry entry() const { return {hash(), child()}; }
    bool holds(std::uint64_t wanted) const { return taken != 0 && hash() == wanted; }
  };
  struct Head {
    std::uint32_t size;
    std::uint32_t homes;
    std::uint32_t places;  // homes, and behind them room for the overflow at the end
  };
  static_assert(alignof(Place) <= sizeof(Head), "places follow the head");

  Place* places() const { return reinterpret_cast<Place*>(head_ + 1); }
  const Place* stop() const { return places() + head_->places; }
  std::size_t home_of(std::uint64_t hash) const {
    return static_cast<std::size_t>((hash >> 32) * head_->homes >> 32);
  }
  // Return the first entry of this hash or a higher one, or the gap at its place.
  const Place* first_from(std::uint64_t hash) const;
  // Make `homes` homes, with space behind them for at least one entry more.
  void rebuild(std::uint32_t homes);
  void clear();

  Head* head_ = nullptr;
};

class ChildList::Iterator {
 public:
  using value_type = ChildEntry;
  using difference_type = std::ptrdiff_t;
  using iterator_category = std::input_iterator_tag;
  using pointer = const ChildEntry*;
  using reference = ChildEntry;

  Iterator() = default;
  ChildEntry operator*() const { return at_->entry(); }
  Iterator& operator++() {
    ++at_;
    skip_gaps();
    return *this;
  }
  Iterator operator++(int) {
    Iterator before = *this;
    ++*this;
    return before;
  }
  bool operator==(const Iterator& other) const { return at_ == other.at_; }

 private:
  friend class ChildList;
  Iterator(const Place* at, const Place* stop) : at_(at), stop_(stop) { skip_gaps(); }
  void skip_gaps() {
    while (at_ != stop_ && at_->taken == 0) ++at_;
  }

  const Place* at_ = nullptr;
  const Place* stop_ = nullptr;
};

inline ChildList::Iterator ChildList::begin() const {
  return head_ ? Iterator(places(), stop()) : Iterator();
}
inline ChildList::Iterator ChildList::end() const {
  return head_ ? Iterator(stop(), stop()) : Iterator();
}

}  // namespace tasuki::cache
