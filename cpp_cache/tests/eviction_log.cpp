// The log of evictions against all that was ever added to it.
#include "events/eviction_log.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <vector>

namespace tasuki::cache {
namespace {

TEST_CASE("the log remembers its last decisions and what took each state") {
  EvictionLog log;
  std::mt19937 random(7);
  std::vector<StateKey> keys;
  std::vector<bool> of_states;
  std::vector<std::int64_t> pages_before;
  std::map<StateKey, std::size_t> last;  // decision that took a state, from 0
  std::int64_t pages = 0;
  std::size_t drained = 0;
  const auto remembered = EvictionLog::kRemembered;
  for (std::size_t number = 0; number < 3 * remembered + 5; ++number) {
    const bool state = random() % 3 != 0;
    const EvictionItem item{.kind = state ? EvictionKind::kCheckpoint : EvictionKind::kLeafPages,
                            .last_use = static_cast<Tick>(number),
                            .node = static_cast<NodeId>(random() % (2 * remembered)),
                            .tail = {}};
    const auto freed = static_cast<std::int64_t>(random() % 9);
    log.add(item, {.sequence = 0,
                   .kind = item.kind,
                   .checkpoint_kind = {},
                   .boundary = static_cast<std::int64_t>(number),
                   .pages = freed,
                   .score = {},
                   .allocation = {}});
    keys.push_back({item.node, item.tail});
    of_states.push_back(state);
    pages_before.push_back(pages);
    pages += freed;
    if (state) last[keys.back()] = number;

    const std::size_t asked = number - random() % (number + 1);
    const auto taker = last.find(keys[asked]);
    const auto found = log.find(keys[asked]);
    const bool expected = taker != last.end() && number - taker->second < remembered;
    REQUIRE(found.has_value() == expected);
    if (expected) {
      CHECK(found->eviction == static_cast<std::int64_t>(taker->second) + 1);
      CHECK(found->boundary == static_cast<std::int64_t>(taker->second));
      CHECK(found->pages_since == pages - pages_before[taker->second]);
    }
    if (random() % 3000 == 0) {
      const auto fresh = log.drain();
      const std::size_t count = std::min(number + 1 - drained, remembered);
      REQUIRE(fresh.size() == count);
      for (std::size_t i = 0; i < count; ++i) {
        REQUIRE(fresh[i].sequence == static_cast<std::int64_t>(number + 2 - count + i));
        REQUIRE(fresh[i].boundary == fresh[i].sequence - 1);
      }
      drained = number + 1;
      CHECK(log.drain().empty());
    }
  }
  CHECK(log.count() == static_cast<std::int64_t>(keys.size()));
}

}  // namespace
}  // namespace tasuki::cache
