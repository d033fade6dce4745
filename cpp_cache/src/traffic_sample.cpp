#include "cpp_cache/traffic_sample.h"

#include <algorithm>
#include <cstring>

namespace tasuki::cache {

namespace {

constexpr std::uint32_t kRequestsToHalve = 8192;
constexpr std::uint32_t kCommonShare = 32;  // of all requests, one in this many is much
constexpr std::uint32_t kFewest = 16;       // below it a share tells nothing

std::uint64_t mixed(std::uint64_t value) {
  value ^= value >> 32;
  value *= 0xd6e8feb86659fd93U;
  value ^= value >> 29;
  value *= 0xd6e8feb86659fd93U;
  return value ^ (value >> 32);
}

std::uint64_t hashed(std::uint64_t seed, Tokens run) {
  for (const Token token : run) {
    seed = (seed ^ static_cast<std::uint32_t>(token)) * 0x9e3779b97f4a7c15U;
  }
  return mixed(seed);
}

}  // namespace

bool TrafficSample::is_common(std::uint64_t start) {
  const std::uint32_t count = ++counts_[start % kCounters];
  return count >= kFewest && count > requests_ / kCommonShare;
}

bool TrafficSample::take(std::string_view salt, Tokens prompt) {
  if (++requests_ == kRequestsToHalve) {
    requests_ /= 2;
    for (std::uint32_t& count : counts_) count /= 2;
  }
  std::uint64_t start = 0;
  for (const char letter : salt) start = mixed(start ^ static_cast<unsigned char>(letter));
  std::size_t done = 0;
  std::size_t end = static_cast<std::size_t>(kPageTokens);
  do {
    end = std::min(end, prompt.size());
    start = hashed(start, prompt.subspan(done, end - done));
    done = end;
    end *= 2;
  } while (is_common(start) && done < prompt.size());
  return mixed(start + 1) % one_in_ == 0;
}

}  // namespace tasuki::cache
