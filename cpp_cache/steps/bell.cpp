#include "steps/bell.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <ctime>
#include <system_error>

namespace tasuki::dataplane {

Bell::Bell() : event_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (event_ < 0) throw std::system_error(errno, std::generic_category(), "no bell could be made");
}

Bell::~Bell() { close(event_); }

void Bell::ring() const {
  const std::uint64_t one = 1;
  // Fails only if 2^64 - 2 rings wait already.
  [[maybe_unused]] const auto written = write(event_, &one, sizeof one);
}

void Bell::watch(int descriptor) {
  {
    const std::scoped_lock lock(mutex_);
    watched_.push_back(descriptor);
  }
  ring();
}

void Bell::forget(int descriptor) {
  {
    const std::scoped_lock lock(mutex_);
    std::erase(watched_, descriptor);
  }
  ring();
}

bool Bell::wait(double seconds) {
  std::vector<pollfd> polled{{event_, POLLIN, 0}};
  {
    const std::scoped_lock lock(mutex_);
    for (const int descriptor : watched_) polled.push_back({descriptor, POLLIN, 0});
  }
  const double whole = std::floor(std::clamp(seconds, 0.0, 1e6));
  const timespec most{static_cast<std::time_t>(whole),
                      static_cast<long>((std::clamp(seconds, 0.0, 1e6) - whole) * 1e9)};
  const int ready = ppoll(polled.data(), polled.size(), &most, nullptr);
  if (polled.front().revents != 0) {
    std::uint64_t rings = 0;
    [[maybe_unused]] const auto taken = read(event_, &rings, sizeof rings);
  }
  return ready > 0;
}

}  // namespace tasuki::dataplane
