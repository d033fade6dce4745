// A vector costing one pointer while it is empty, for lists absent from most nodes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>

namespace tasuki::cache {

// Owns its items, in one piece of memory with their count: one wait for memory to reach the first.
// Frees it when the last one goes. Iterators are pointers, invalid after any change.
template <typename T>
class CompactVector {
 public:
  CompactVector() = default;
  CompactVector(CompactVector&& other) noexcept : head_(std::exchange(other.head_, nullptr)) {}
  CompactVector& operator=(CompactVector&& other) noexcept {
    std::swap(head_, other.head_);
    return *this;
  }
  ~CompactVector() { clear(); }

  bool empty() const { return head_ == nullptr; }
  std::size_t size() const { return head_ ? head_->size : 0; }
  T* begin() { return head_ ? items() : nullptr; }
  T* end() { return begin() + size(); }
  const T* begin() const { return head_ ? items() : nullptr; }
  const T* end() const { return begin() + size(); }

  void push_back(T item) { insert(end(), std::move(item)); }
  void insert(const T* place, T item) {
    const auto offset = static_cast<std::size_t>(place - begin());
    make_room();
    T* const stop = items() + head_->size;
    std::construct_at(stop, std::move(item));
    ++head_->size;
    std::rotate(items() + offset, stop, stop + 1);
  }
  void erase(const T* place) {
    std::move(begin() + (place - begin()) + 1, end(), begin() + (place - begin()));
    shrink_to(head_->size - 1);
  }

 private:
  struct Head {
    std::uint32_t size;
    std::uint32_t capacity;
  };
  static_assert(alignof(T) <= sizeof(Head), "items follow the head");

  T* items() const { return reinterpret_cast<T*>(head_ + 1); }
  void make_room() {
    if (head_ && head_->size < head_->capacity) return;
    const std::uint32_t size = head_ ? head_->size : 0;
    const std::uint32_t capacity = head_ ? 2 * head_->capacity : 1;
    void* const memory = ::operator new(sizeof(Head) + capacity * sizeof(T));
    auto* const head = new (memory) Head{size, capacity};
    auto* to = reinterpret_cast<T*>(head + 1);
    if (head_) std::uninitialized_move(begin(), end(), to);
    clear();
    head_ = head;
  }
  void shrink_to(std::size_t size) {
    std::destroy(begin() + size, end());
    head_->size = static_cast<std::uint32_t>(size);
    if (size == 0) clear();
  }
  void clear() {
    if (!head_) return;
    std::destroy(begin(), end());
    ::operator delete(std::exchange(head_, nullptr));
  }

  Head* head_ = nullptr;
};

}  // namespace tasuki::cache
