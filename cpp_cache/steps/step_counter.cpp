#include "steps/step_counter.h"

#include <algorithm>
#include <chrono>
#include <limits>

namespace tasuki::dataplane {

namespace {

constexpr std::size_t kRememberedTicks = 4096;
constexpr std::size_t kRememberedEnds = 256;
constexpr double kNever = std::numeric_limits<double>::infinity();

}  // namespace

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

StepCounter::StepCounter(Report report) : report_(std::move(report)) {}

std::int64_t StepCounter::value() const {
  const std::scoped_lock lock(mutex_);
  return value_;
}

void StepCounter::tick() {
  std::int64_t value = 0;
  {
    const std::scoped_lock lock(mutex_);
    times_.push_back(now());
    if (times_.size() > kRememberedTicks) times_.pop_front();
    value = ++value_;
    for (const Alarm& alarm : alarms_) {
      if (value >= alarm.tick) alarm.bell->ring();
    }
  }
  changed_.notify_all();
  if (report_) report_(value, false);
}

void StepCounter::end_forward() {
  std::int64_t value = 0;
  {
    const std::scoped_lock lock(mutex_);
    value = value_;
    ends_.emplace_back(value, now());
    if (ends_.size() > kRememberedEnds) ends_.pop_front();
  }
  if (report_) report_(value, true);
}

double StepCounter::end_of(std::int64_t tick) const {
  const std::scoped_lock lock(mutex_);
  for (const auto& [value, at] : ends_) {
    if (value >= tick) return at;
  }
  if (!ends_.empty()) return kNever;
  return time_of(tick).value_or(-kNever);
}

bool StepCounter::wait_for(std::int64_t tick, double seconds) const {
  std::unique_lock lock(mutex_);
  const std::chrono::duration<double> most(std::clamp(seconds, 0.0, 1e6));
  return changed_.wait_for(lock, most, [&] { return value_ >= tick; });
}

std::vector<std::optional<double>> StepCounter::times_of(std::int64_t first,
                                                         std::int64_t end) const {
  const std::scoped_lock lock(mutex_);
  std::vector<std::optional<double>> times;
  for (std::int64_t tick = first; tick < end; ++tick) times.push_back(time_of(tick));
  return times;
}

std::optional<double> StepCounter::time_of(std::int64_t tick) const {
  const std::int64_t oldest = value_ - static_cast<std::int64_t>(times_.size()) + 1;
  if (tick < oldest || tick > value_) return std::nullopt;
  return times_[static_cast<std::size_t>(tick - oldest)];
}

bool StepCounter::ring_at(const std::shared_ptr<const Bell>& bell,
                          std::optional<std::int64_t> tick) {
  const std::scoped_lock lock(mutex_);
  std::erase_if(alarms_, [&](const Alarm& alarm) { return alarm.bell == bell; });
  if (!tick) return false;
  alarms_.push_back({bell, *tick});
  return value_ >= *tick;
}

}  // namespace tasuki::dataplane
