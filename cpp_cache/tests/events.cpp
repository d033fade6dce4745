// What watchers are told, against what stands.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "core/errors.h"
#include "tests/cache_life.h"

using namespace tasuki::cache;

namespace {

// The prefixes that stand, as the events of one watch tell.
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

TEST_CASE("whoever follows the events knows what a late watcher is shown") {
  for (const PolicyKind policy : {PolicyKind::kLru, PolicyKind::kValue}) {
    PrefixCache cache = make_prefix_cache({10, 4, 3, 16, policy});
    const WatchId patient = cache.journal().open(EventStream::kAll, 1000);
    const WatchId hasty = cache.journal().open(EventStream::kAll, 4);
    Follower told;
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
      told.follow(cache.journal().drain(patient));
      if (turn % 5 != 0) continue;
      late.follow(cache.journal().drain(hasty));
      CHECK(late.pages == told.pages);
      CHECK(late.states == told.states);
      const WatchId fresh = cache.journal().open(EventStream::kUsable, 1);
      Follower shown;
      shown.follow(cache.journal().drain(fresh));
      cache.journal().close(fresh);
      CHECK(shown.states == told.states);
      CHECK(shown.pages.empty());
      CHECK(static_cast<std::int64_t>(told.states.size()) == cache.stats().checkpoints);
    }
    CHECK(late.gaps > 10);
    CHECK(told.gaps == 0);
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
