// A share of the traffic that keeps prompts which go on from each other together.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "core/ids.h"

namespace tasuki::cache {

// Takes a request by the hash of its start: of its first page, or of its pages 1, 2, 4, 8, ... for
// as long as so many requests begin alike that a coin for all of them would decide too much. A
// conversation's turns so meet one coin; a system prompt that all share meets none.
// Knows no tree. Deterministic; one fixed table, whatever the traffic.
class TrafficSample {
 public:
  // Takes about one request of `one_in`. REQUIRES: one_in >= 1.
  explicit TrafficSample(std::int64_t one_in) : one_in_(static_cast<std::uint64_t>(one_in)) {}

  // Counts the request and says whether it is taken. O(log(prompt)) pages. REQUIRES: a prompt.
  bool take(std::string_view salt, Tokens prompt);

 private:
  static constexpr std::size_t kCounters = 4096;

  bool is_common(std::uint64_t start);

  std::uint64_t one_in_;
  std::array<std::uint32_t, kCounters> counts_{};
  std::uint32_t requests_ = 0;
};

}  // namespace tasuki::cache
