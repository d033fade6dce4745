// Average earnings of a cached page, recent ones weighing more.
#pragma once

#include <cstdint>

namespace tasuki::cache {

// Sums, fading, of prefill saved and of pages brought in for it. While nothing had to be evicted a
// page costs nothing.
class Earnings {
 public:
  // One request; a token's prefill alone is 1, a slot counts as the pages of a slab.
  void request(double saved, std::int64_t pages) {
    saved_ = saved_ * kFade + saved;
    pages_ = pages_ * kFade + static_cast<double>(pages);
  }
  void evicted() { is_scarce_ = true; }
  double price(std::int64_t pages) const {
    if (!is_scarce_ || pages_ <= 0) return 0;
    return saved_ / pages_ * static_cast<double>(pages);
  }

 private:
  static constexpr double kFade = 0.999;  // the last thousand requests decide

  double saved_ = 0;
  double pages_ = 0;
  bool is_scarce_ = false;
};

}  // namespace tasuki::cache
