// Tests of reported events against the tree; and of the eviction log against all additions.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "core/errors.h"
#include "events/eviction_log.h"
#include "tests/cache_life.h"

using namespace tasuki::cache;

namespace {

// The prefixes known by the events of one watch.
struct Follower {
  std::map<PrefixHash, PrefixHash> pages;  // to their parents
  std::set<PrefixHash> states;
  std::uint64_t sequence = 0;
  std::int64_t gaps = 0;

  void follow(const EventBatch& batch) {
    if (batch.is_snapshot) {
      pages.clear();
      states.clear();
      if (batch.gap) {
        ++gaps;
        CHECK(batch.gap->first_lost == sequence + 1);
        CHECK(batch.gap->resync_from == batch.sequence);
      }
    }
    for (const CacheEvent& event : batch.events) {
      if (!batch.is_snapshot) CHECK(event.sequence == ++sequence);
      apply(event);
    }
    sequence = batch.sequence;
  }

  void apply(const CacheEvent& event) {
    switch (event.kind) {
      case EventKind::kPageStored:
        CHECK(pages.emplace(event.prefix, event.parent).second);
        CHECK((event.tokens == kPageTokens || pages.contains(event.parent)));
        break;
      case EventKind::kPageRemoved:
        CHECK(pages.erase(event.prefix) == 1);
        CHECK(std::ranges::none_of(pages,
                                   [&](const auto& page) { return page.second == event.prefix; }));
        break;
      case EventKind::kCheckpointStored:
        CHECK(states.insert(event.prefix).second);
        break;
      case EventKind::kCheckpointRemoved:
        CHECK(states.erase(event.prefix) == 1);
        break;
      case EventKind::kCleared:
        pages.clear();
        states.clear();
        break;
    }
  }
};

}  // namespace

TEST_CASE("whoever follows the events has what a late watcher is shown") {
  for (const PolicyKind policy : {PolicyKind::kLru, PolicyKind::kValue}) {
    PrefixCache cache = make_prefix_cache({10, 4, 3, 16, policy});
    const WatchId patient = cache.journal().open(EventStream::kAll, 1000);
    const WatchId hasty = cache.journal().open(EventStream::kAll, 4);
    Follower early;
    Follower late;
    std::mt19937 draw(7);
    for (int turn = 0; turn < 400; ++turn) {
      std::vector<Token> pages;
      for (std::uint32_t i = 0; i < 1 + draw() % 4; ++i) {
        pages.push_back(static_cast<Token>(draw() % 3));
      }
      const auto tokens = prompt(pages, draw() % 2);
      serve(cache, tokens, static_cast<std::int64_t>(tokens.size()));
      if (turn % 97 == 96) cache.flush();
      early.follow(cache.journal().drain(patient));
      if (turn % 5 != 0) continue;
      late.follow(cache.journal().drain(hasty));
      CHECK(late.pages == early.pages);
      CHECK(late.states == early.states);
      const WatchId fresh = cache.journal().open(EventStream::kUsable, 1);
      Follower shown;
      shown.follow(cache.journal().drain(fresh));
      cache.journal().close(fresh);
      CHECK(shown.states == early.states);
      CHECK(shown.pages.empty());
      CHECK(static_cast<std::int64_t>(early.states.size()) == cache.stats().checkpoints);
    }
    CHECK(late.gaps > 10);
    CHECK(early.gaps == 0);
    cache.check_integrity();
  }
}

TEST_CASE("a watch needs room for an event, and ends once") {
  PrefixCache cache = make_prefix_cache(small_arena());
  CHECK_THROWS_AS(cache.journal().open(EventStream::kAll, 0), InvalidArgument);
  const WatchId watch = cache.journal().open(EventStream::kAll, 1);
  cache.journal().close(watch);
  CHECK_THROWS_AS(cache.journal().close(watch), InvalidArgument);
  CHECK_THROWS_AS(cache.journal().drain(watch), InvalidArgument);
}

TEST_CASE("the log remembers its last decisions and what took each state") {
  EvictionLog log;
  std::mt19937 random(7);
  std::vector<StateKey> keys;
  std::vector<bool> of_states;
  std::vector<std::int64_t> pages_before;
  std::map<StateKey, std::size_t> last;  // number of the decision that took a state, from 0
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
