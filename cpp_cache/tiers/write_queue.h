// States that are to be written down, in order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

#include "core/ids.h"

namespace tasuki::cache {

// Owns names only: what waits is pinned by nobody, and who takes it out finds out whether it still
// stands. The oldest go where too many wait.
class WriteQueue {
 public:
  struct Waiting {
    StateKey state;
    std::uint64_t serial;  // of its node
  };
  static constexpr std::size_t kMost = 4096;

  void push(const Waiting& waiting) {
    if (waiting_.size() == kMost) {
      waiting_.pop_front();
      ++dropped_;
    }
    waiting_.push_back(waiting);
  }
  bool empty() const { return waiting_.empty(); }
  std::int64_t size() const { return static_cast<std::int64_t>(waiting_.size()); }
  // REQUIRES: not empty.
  const Waiting& front() const { return waiting_.front(); }
  void pop() { waiting_.pop_front(); }
  void clear() { waiting_.clear(); }
  // That were never written because too many waited.
  std::int64_t dropped() const { return dropped_; }

 private:
  std::deque<Waiting> waiting_;
  std::int64_t dropped_ = 0;
};

}  // namespace tasuki::cache
