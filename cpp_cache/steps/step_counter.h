// Counter of layers, of any kind, with KV and state written by an engine since its start.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "steps/bell.h"

namespace tasuki::dataplane {

// Seconds of the monotonic clock, as Python's time.monotonic() has them.
double now();

// Owns one monotone integer, the times of its last ticks and of the ends of forwards. Does not know
// layers or rooms. One thread ticks; any thread reads, waits and sets alarms. Invariants: the value
// only grows. ring_at() returns true for a tick before its return, and a later tick rings.
class StepCounter {
 public:
  // The value, and true if a forward ended with it. Called on the ticking thread without a lock.
  using Report = std::function<void(std::int64_t, bool)>;

  explicit StepCounter(Report report = {});

  std::int64_t value() const;

  // One more layer's KV and state are written: others may read them from now on.
  void tick();
  // Record the last layer of the latest ticking forward.
  void end_forward();

  // Return the end of the tick's forward: infinity while it runs. Without a reported end, return
  // the tick's own time; minus infinity if its time is forgotten too.
  double end_of(std::int64_t tick) const;

  // Blocks until the value is at least `tick` or `seconds` are over; whether it is.
  bool wait_for(std::int64_t tick, double seconds) const;

  // Return the times of ticks [first, end); nothing for forgotten or future ones.
  std::vector<std::optional<double>> times_of(std::int64_t first, std::int64_t end) const;

  // Ring `bell` at every tick from `tick` on, instead of its former tick; never without one.
  // Returns true if the tick has come already.
  bool ring_at(const std::shared_ptr<const Bell>& bell, std::optional<std::int64_t> tick);

 private:
  struct Alarm {
    std::shared_ptr<const Bell> bell;
    std::int64_t tick;
  };

  std::optional<double> time_of(std::int64_t tick) const;

  Report report_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::int64_t value_ = 0;
  std::deque<double> times_;
  std::deque<std::pair<std::int64_t, double>> ends_;
  std::vector<Alarm> alarms_;
};

}  // namespace tasuki::dataplane
