#include "trials/traffic_sample.h"

#include <algorithm>

namespace tasuki::cache {

namespace {

constexpr auto kPage = static_cast<std::size_t>(kPageTokens);
constexpr std::uint32_t kRequestsToHalve = 8192;
constexpr std::uint32_t kCommonShare = 32;  // one request in this many is a common start
constexpr std::uint32_t kFewest = 16;       // below it a share means nothing

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
  // Behind the first difference of two prompts all their pages differ, so one page of each span
  // decides.
  const std::size_t pages = std::max<std::size_t>(1, prompt.size() / kPage);
  for (std::size_t span = 1; span <= pages; span *= 2) {
    const std::size_t from = (span - 1) * kPage;
    start = hashed(start, prompt.subspan(from, std::min(kPage, prompt.size() - from)));
    if (!is_common(start)) break;
  }
  return mixed(start + 1) % one_in_ == 0;
}

}  // namespace tasuki::cache
