// Queue of states to write down, in order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

#include "core/ids.h"

namespace tasuki::cache {

// Owns names only: a waiting state is not pinned, so the taker checks its existence. Beyond the
// limit the oldest go.
class WriteQueue {
 public:
  struct Waiting {
    StateKey state;
    std::uint64_t serial;  // serial of its node
  };
  static constexpr std::size_t kMost = 4096;

  void push(const Waiting& waiting) {
    if (waiting_.size() == kMost) waiting_.pop_front();
    waiting_.push_back(waiting);
  }
  std::int64_t size() const { return static_cast<std::int64_t>(waiting_.size()); }
  // REQUIRES: not empty.
  const Waiting& front() const { return waiting_.front(); }
  void pop() { waiting_.pop_front(); }
  void clear() { waiting_.clear(); }

 private:
  std::deque<Waiting> waiting_;
};

}  // namespace tasuki::cache
