// Wakes one thread that waits for any of several things: whoever has something for it rings.
#pragma once

#include <mutex>
#include <vector>

namespace tasuki::dataplane {

// Owns an event descriptor of the kernel. Knows nothing of what it rings for. Any thread rings and
// watches; one waits. Invariant: a ring that comes before wait() ends that wait, so that none is
// slept through; rings that nobody waited for are one.
class Bell {
 public:
  // Throws std::system_error where the process has no descriptor left.
  Bell();
  ~Bell();
  Bell(const Bell&) = delete;
  Bell& operator=(const Bell&) = delete;

  void ring() const;

  // Ends a wait too while something can be read from `descriptor`. REQUIRES: forget() before it is
  // closed.
  void watch(int descriptor);
  void forget(int descriptor);

  // Until somebody rings, something watched can be read, or `seconds` are over; whether it was one
  // of the former. What rang is forgotten by it.
  bool wait(double seconds);

 private:
  int event_;
  std::mutex mutex_;
  std::vector<int> watched_;
};

}  // namespace tasuki::dataplane
