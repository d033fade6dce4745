// Of how many layers, of any kind, an engine has written KV and state for good since it started.
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
// layers or rooms. One thread ticks; any thread reads, waits and sets alarms.
// Invariants: the value only grows; a tick that has come before ring_at() returns is what that
// returns, one that comes after it rings.
class StepCounter {
 public:
  // The value, and whether a forward ended with it; called on the ticking thread, which holds no
  // lock of this.
  using Report = std::function<void(std::int64_t, bool)>;

  explicit StepCounter(Report report = {});

  std::int64_t value() const;

  // One more layer's KV and state are written: others may read them from now on.
  void tick();
  // The forward whose layers ticked last has computed its last layer.
  void end_forward();

  // When the forward that ticked it had ended: infinity while it runs. The tick's own time where
  // nobody has reported an end yet; minus infinity where that is forgotten too.
  double end_of(std::int64_t tick) const;

  // Blocks until the value is at least `tick` or `seconds` are over; whether it is.
  bool wait_for(std::int64_t tick, double seconds) const;

  // When the value became each of ticks [first, end); nothing where that is too long ago or yet to
  // come.
  std::vector<std::optional<double>> times_of(std::int64_t first, std::int64_t end) const;

  // Ring `bell` at every tick from `tick` on, instead of from where it did before; never where
  // there is none. Whether that tick has come already.
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
