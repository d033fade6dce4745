// Cost of prefill; one token alone costs 1.
#pragma once

#include <cstdint>

namespace tasuki::cache {

// Return the cost of tokens [from, to). attention_cost: cost of a token per earlier token.
inline double prefill_between(double attention_cost, std::int64_t from, std::int64_t to) {
  const auto start = static_cast<double>(from);
  const auto end = static_cast<double>(to);
  return (end - start) * (1 + attention_cost * (end + start) / 2);
}

}  // namespace tasuki::cache
