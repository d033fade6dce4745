// A set of small integers as a tree of 64-way bit maps.
#pragma once

#include <cstdint>
#include <iterator>
#include <vector>

namespace tasuki::cache {

// Holds integers of [0, limit). Asks and changes cost O(log64 limit) and allocate nothing; a walk
// is in ascending order and stays valid while integers before it change.
class IdSet {
 public:
  class Iterator {
   public:
    using value_type = std::int64_t;
    using difference_type = std::ptrdiff_t;
    using iterator_category = std::forward_iterator_tag;
    using pointer = const std::int64_t*;
    using reference = std::int64_t;

    Iterator() = default;
    Iterator(const IdSet* set, std::int64_t at) : set_(set), at_(at) {}
    std::int64_t operator*() const { return at_; }
    Iterator& operator++() {
      at_ = set_->at_or_after(at_ + 1);
      return *this;
    }
    Iterator operator++(int) {
      Iterator before = *this;
      ++*this;
      return before;
    }
    bool operator==(const Iterator& other) const { return at_ == other.at_; }

   private:
    const IdSet* set_ = nullptr;
    std::int64_t at_ = 0;
  };

  explicit IdSet(std::int64_t limit);
  void insert(std::int64_t id);
  void erase(std::int64_t id);
  bool contains(std::int64_t id) const;
  bool empty() const { return size_ == 0; }
  std::size_t size() const { return static_cast<std::size_t>(size_); }
  Iterator begin() const { return {this, at_or_after(0)}; }
  Iterator end() const { return {this, limit_}; }

 private:
  // Return the smallest member >= `id`, or `limit` if there is none.
  std::int64_t at_or_after(std::int64_t id) const;

  std::int64_t limit_;
  std::int64_t size_ = 0;
  std::vector<std::vector<std::uint64_t>> levels_;  // 0: one bit an id; above: one bit a word
};

}  // namespace tasuki::cache
