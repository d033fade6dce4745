// What prefill costs, where a token alone costs 1.
#pragma once

#include <cstdint>

namespace tasuki::cache {

// Of the tokens from `from` to `to`. attention_cost: of a token, for each token before it.
inline double prefill_between(double attention_cost, std::int64_t from, std::int64_t to) {
  const auto start = static_cast<double>(from);
  const auto end = static_cast<double>(to);
  return (end - start) * (1 + attention_cost * (end + start) / 2);
}

}  // namespace tasuki::cache
