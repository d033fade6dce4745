// Bell to wake one thread waiting for any of several things.
#pragma once

#include <mutex>
#include <vector>

namespace tasuki::dataplane {

// Owns an event descriptor of the kernel. Knows nothing of the reasons to ring. Any thread rings
// and watches; one waits. Invariant: a ring before wait() ends the wait, so none is lost; rings
// without a waiter count as one.
class Bell {
 public:
  // Throws std::system_error if the process has no descriptor left.
  Bell();
  ~Bell();
  Bell(const Bell&) = delete;
  Bell& operator=(const Bell&) = delete;

  void ring() const;

  // Ends a wait too while something can be read from `descriptor`. REQUIRES: forget() before it is
  // closed.
  void watch(int descriptor);
  void forget(int descriptor);

  // Wait until a ring, until a watched descriptor can be read, or for `seconds`. Returns false at
  // the timeout. Clears the ring.
  bool wait(double seconds);

 private:
  int event_;
  std::mutex mutex_;
  std::vector<int> watched_;
};

}  // namespace tasuki::dataplane
