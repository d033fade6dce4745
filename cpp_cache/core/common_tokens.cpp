#include "core/common_tokens.h"

#include <algorithm>
#include <cstring>

namespace tasuki::cache {

std::int64_t common_tokens(Tokens left, Tokens right) {
  const std::size_t limit = std::min(left.size(), right.size());
  if (limit == 0 || left[0] != right[0]) return 0;
  // memcmp answers the usual question, "is all of it equal?", fastest.
  if (std::memcmp(left.data(), right.data(), limit * sizeof(Token)) == 0) {
    return static_cast<std::int64_t>(limit);
  }
  const auto differ =
      std::mismatch(left.begin(), left.begin() + static_cast<std::ptrdiff_t>(limit), right.begin());
  return differ.first - left.begin();
}

}  // namespace tasuki::cache
