// Limit of writes to a tier in the long run.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

namespace tasuki::cache {

// A bucket of pages, filled by injected time. Holds a minute's worth at most, and begins full.
class WriteBudget {
 public:
  explicit WriteBudget(std::optional<double> pages_a_second)
      : rate_(pages_a_second), pages_(rate_.value_or(0) * kSeconds) {}

  // Time never runs back.
  void advance(std::int64_t now_ms) {
    if (!rate_ || now_ms <= now_ms_) return;
    // The first time is an origin.
    if (now_ms_ > 0) {
      pages_ += *rate_ * static_cast<double>(now_ms - now_ms_) / 1000;
      pages_ = std::min(pages_, *rate_ * kSeconds);
    }
    now_ms_ = now_ms;
  }
  bool is_bounded() const { return rate_.has_value(); }
  // nullopt: any number.
  std::optional<double> left() const { return rate_ ? std::optional(pages_) : std::nullopt; }
  bool is_open() const { return !rate_ || pages_ > 0; }
  // May leave a negative budget, by one transfer: later ones make up for it.
  void spend(std::int64_t pages) {
    if (rate_) pages_ -= static_cast<double>(pages);
  }

 private:
  static constexpr double kSeconds = 60;

  std::optional<double> rate_;
  double pages_;
  std::int64_t now_ms_ = 0;
};

}  // namespace tasuki::cache
