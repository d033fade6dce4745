// A share of the traffic with whole conversations.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "core/ids.h"

namespace tasuki::cache {

// Takes a request by the hash of its start. The start is its first page. If too many requests begin
// alike, it is the pages 1, 2, 4, 8 and so on, so one coin does not decide too much. So the turns
// of a conversation share a coin; a system prompt common to all has none. Knows no tree.
// Deterministic; one fixed table.
class TrafficSample {
 public:
  // Takes about one request of `one_in`. REQUIRES: one_in >= 1.
  explicit TrafficSample(std::int64_t one_in) : one_in_(static_cast<std::uint64_t>(one_in)) {}

  // Counts the request; returns whether it is taken. O(log(prompt)) pages. REQUIRES: a prompt.
  bool take(std::string_view salt, Tokens prompt);

 private:
  static constexpr std::size_t kCounters = 4096;

  bool is_common(std::uint64_t start);

  std::uint64_t one_in_;
  std::array<std::uint32_t, kCounters> counts_{};
  std::uint32_t requests_ = 0;
};

}  // namespace tasuki::cache
