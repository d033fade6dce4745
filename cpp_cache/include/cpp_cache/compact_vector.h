// A vector that costs one pointer while it is empty, for the lists that most nodes do not have.
#pragma once

#include <memory>
#include <utility>
#include <vector>

namespace tasuki::cache {

// Owns its items. Frees its memory when the last one goes. Iterators are pointers, invalid after
// any change.
template <typename T>
class CompactVector {
 public:
  bool empty() const { return items_ == nullptr; }
  std::size_t size() const { return items_ ? items_->size() : 0; }
  T* begin() { return items_ ? items_->data() : nullptr; }
  T* end() { return begin() + size(); }
  const T* begin() const { return items_ ? items_->data() : nullptr; }
  const T* end() const { return begin() + size(); }

  void push_back(T item) { items().push_back(std::move(item)); }
  void insert(const T* place, T item) {
    const auto offset = place - begin();
    items().insert(items().begin() + offset, std::move(item));
  }
  void erase(const T* place) {
    items_->erase(items_->begin() + (place - begin()));
    shed();
  }
  template <typename Predicate>
  std::size_t erase_if(Predicate gone) {
    if (!items_) return 0;
    const std::size_t erased = std::erase_if(*items_, gone);
    shed();
    return erased;
  }

 private:
  std::vector<T>& items() {
    if (!items_) items_ = std::make_unique<std::vector<T>>();
    return *items_;
  }
  void shed() {
    if (items_->empty()) items_.reset();
  }

  std::unique_ptr<std::vector<T>> items_;
};

}  // namespace tasuki::cache
