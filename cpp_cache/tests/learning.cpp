// Tests of the value policy's learning, and of equal decisions on an equal stream.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "policy/reuse_model.h"
#include "policy/value_policy.h"
#include "tests/cache_life.h"

using namespace tasuki::cache;

namespace {

constexpr auto kBuckets = static_cast<std::size_t>(ReuseModel::kBuckets);
using Hazards = std::array<double, kBuckets>;

double width(std::size_t bucket) {
  return bucket == 0 ? 1.0 : std::ldexp(0.5, static_cast<int>(bucket));
}

// Chance of use and time held from `from` until the end of bucket `until`, by small steps.
double ratio_by_steps(const Hazards& hazards, std::size_t from, std::size_t until) {
  constexpr int kSteps = 20000;
  double alive = 1;
  double time = 0;
  for (std::size_t bucket = from; bucket <= until; ++bucket) {
    const double step = width(bucket) / kSteps;
    const double survives = std::exp(-hazards[bucket] * step);
    for (int i = 0; i < kSteps; ++i) {
      time += alive * (1 + survives) / 2 * step;
      alive *= survives;
    }
  }
  return (1 - alive) / time;
}

}  // namespace

TEST_CASE("Gittins index equals the best of all times to give up") {
  Hazards falling{};
  Hazards humped{};
  for (std::size_t bucket = 0; bucket < kBuckets; ++bucket) {
    falling[bucket] = 0.1 / width(bucket);
    humped[bucket] = bucket == 6 ? 0.02 : 0.0005;
  }
  for (const Hazards& hazards : {falling, humped}) {
    const auto indices = gittins_indices(hazards);
    for (const std::size_t from : {0U, 3U, 6U, 9U}) {
      double best = 0;
      for (std::size_t until = from; until < 14; ++until) {
        best = std::max(best, ratio_by_steps(hazards, from, until));
      }
      CHECK(indices[from] == doctest::Approx(best).epsilon(0.01));
    }
  }
  // Waiting for the hump is worth more than its start alone; after it nothing is left to wait for.
  const auto humps = gittins_indices(humped);
  CHECK(humps[3] > humped[3]);
  CHECK(humps[7] == doctest::Approx(humped[7]).epsilon(0.01));
}

TEST_CASE("ReuseModel: time at risk counts before it ends, and reuse raises the hazard") {
  ReuseModel model;
  const std::int32_t group =
      ReuseClass{CheckpointKind::kTurnEnd, TurnHint::kToolCall, false, 1, 9000}.index();
  const double before = model.hazard(group, 4);
  for (int i = 0; i < 100; ++i) model.enter(group, 4, 0);
  model.learn(10'000);
  const double idle = model.hazard(group, 4);
  CHECK(idle < before / 10);
  for (int i = 0; i < 100; ++i) {
    model.reuse(group, 4);
    model.leave(group, 4, 0, 10'000);
  }
  model.learn(10'000);
  CHECK(model.hazard(group, 4) == doctest::Approx(0.1).epsilon(0.05));
}

TEST_CASE("ReuseModel: buckets of age double from one second on") {
  CHECK(ReuseModel::bucket_of(0) == 0);
  CHECK(ReuseModel::bucket_of(999) == 0);
  CHECK(ReuseModel::bucket_of(1000) == 1);
  CHECK(ReuseModel::bucket_of(1999) == 1);
  CHECK(ReuseModel::bucket_of(2000) == 2);
  CHECK(ReuseModel::bucket_of(INT64_MAX) == ReuseModel::kBuckets - 1);
  for (std::int32_t bucket = 0; bucket + 1 < ReuseModel::kBuckets; ++bucket) {
    CHECK(ReuseModel::bucket_of(ReuseModel::end_of(bucket)) == bucket + 1);
    CHECK(ReuseModel::bucket_of(ReuseModel::end_of(bucket) - 1) == bucket);
  }
}

TEST_CASE("ValuePolicy: of equal chances the least saved a page freed goes first") {
  ValuePolicy policy;
  const EvictionItem rich{EvictionKind::kCheckpoint, 1, NodeId{1}, std::nullopt};
  const EvictionItem poor{EvictionKind::kCheckpoint, 2, NodeId{2}, std::nullopt};
  const EvictionItem worthless{EvictionKind::kLeafPages, 3, NodeId{3}, std::nullopt};
  policy.add(rich, {1000, 10});
  policy.add(poor, {1000, 20});
  policy.add(worthless);
  CHECK(policy.victim() == worthless);
  policy.remove(worthless);
  CHECK(policy.victim() == poor);
  policy.follow(PolicyKind::kLru);
  CHECK(policy.victim() == rich);
  policy.remove(rich);
  CHECK(policy.size() == 1);
}

TEST_CASE("ValuePolicy: what is used again and again outlives what is not") {
  ValuePolicy policy;
  const StateKey busy{NodeId{1}, std::nullopt};
  const StateKey idle{NodeId{2}, std::nullopt};
  policy.born(busy, {CheckpointKind::kPromptEnd, TurnHint::kUnknown, 100, 0});
  policy.born(idle, {CheckpointKind::kTurnEnd, TurnHint::kEndOfTurn, 100, 0});
  std::int64_t now = 0;
  for (int i = 0; i < 200; ++i) {
    now += 4000;
    policy.advance(now);
    policy.used(busy);
  }
  const EvictionItem first{EvictionKind::kCheckpoint, 1, NodeId{1}, std::nullopt};
  const EvictionItem second{EvictionKind::kCheckpoint, 2, NodeId{2}, std::nullopt};
  policy.add(first, {100, 10});
  policy.add(second, {100, 10});
  CHECK(policy.victim() == second);
}

TEST_CASE("ValuePolicy: an heir waits in the dropped state's place, once") {
  ValuePolicy policy;
  const StateKey turn{NodeId{5}, TailId{1}};
  const StateKey prompt{NodeId{5}, std::nullopt};
  policy.born(prompt, {CheckpointKind::kPromptEnd, TurnHint::kUnknown, 640, 2});
  policy.born(turn, {CheckpointKind::kTurnEnd, TurnHint::kToolCall, 700, 2});
  policy.inherited(turn, prompt);
  CHECK(policy.waiting_for(turn) == prompt);
  policy.used(prompt);
  CHECK(policy.turns(prompt) == 3);
  CHECK(policy.turns(turn) == 0);
  policy.born(turn, {CheckpointKind::kTurnEnd, TurnHint::kUnknown, 700, 3});
  CHECK(policy.waiting_for(turn) == turn);
}

TEST_CASE("Same stream, same decisions: every policy evicts alike in two trees") {
  for (const PolicyKind policy : {PolicyKind::kLru, PolicyKind::kValue, PolicyKind::kAuto}) {
    CacheConfig config = small_arena(12);
    config.policy = policy;
    config.attention_cost = 1e-3;
    PrefixCache left = make_prefix_cache(config);
    PrefixCache right = make_prefix_cache(config);
    std::uint32_t random = 7;
    for (int turn = 0; turn < 600; ++turn) {
      random = random * 1664525U + 1013904223U;
      const Token first = static_cast<Token>(random >> 28);
      const Token second = static_cast<Token>((random >> 20) % 5);
      const auto tokens = prompt({first, second}, 1 + static_cast<std::int64_t>(turn % 3));
      for (PrefixCache* cache : {&left, &right}) {
        cache->advance_to(turn * 700);
        serve(*cache, tokens, turn % 2 == 0 ? 128 : static_cast<std::int64_t>(tokens.size()));
      }
      REQUIRE(left.match(tokens, "", std::nullopt).usable_tokens ==
              right.match(tokens, "", std::nullopt).usable_tokens);
    }
    CHECK(left.stats().usable_tokens == right.stats().usable_tokens);
    CHECK(left.stats().evicted_pages == right.stats().evicted_pages);
    CHECK(left.policy() == right.policy());
    left.check_integrity();
  }
}

TEST_CASE("A slab is emptied by moving its pages where gaps elsewhere can hold them") {
  // Four prompts of two pages, each with a slab of its own: four gaps, one slab free.
  PrefixCache cache = make_prefix_cache({9, 4, 3, 64});
  for (const Token page : {1, 2, 3, 4}) serve(cache, prompt({page, page + 10}), 128);
  REQUIRE(cache.stats().slabs_free == 1);
  const auto tokens = prompt({7}, 0);
  const AllocationId allocation = cache.allocate(tokens, "", terms(tokens, 2)).value();
  CHECK(cache.stats().evicted_pages == 0);
  CHECK(cache.stats().evicted_checkpoints == 0);
  const auto moves = cache.drain_moves();
  CHECK(moves.size() == 2);
  CHECK(cache.drain_moves().empty());
  for (const Token page : {1, 2, 3, 4}) {
    CHECK(cache.match(prompt({page, page + 10}), "", std::nullopt).usable_tokens == 128);
  }
  cache.check_integrity();
  cache.release(allocation);
}

TEST_CASE(
    "A page under an allocation is never moved: its slab is left, another emptied or evicted") {
  PrefixCache cache = make_prefix_cache({9, 4, 3, 64});
  for (const Token page : {1, 2, 3, 4}) serve(cache, prompt({page, page + 10}), 128);
  std::vector<AllocationId> holders;
  for (const Token page : {1, 2, 3}) {
    const auto held = prompt({page, page + 10});
    // No page or slot of its own is left to it beside the match.
    holders.push_back(cache.allocate(held, "", {129, 0, std::nullopt}).value());
  }
  const auto before = cache.allocation(holders.front()).pages;
  const auto tokens = prompt({7}, 0);
  const auto allocation = cache.allocate(tokens, "", terms(tokens, 2));
  for (const PageMove& move : cache.drain_moves()) {
    for (const AllocationId holder : holders) {
      const auto& pages = cache.allocation(holder).pages;
      CHECK(std::ranges::find(pages, move.from) == pages.end());
    }
  }
  CHECK(cache.allocation(holders.front()).pages == before);
  cache.check_integrity();
  if (allocation) cache.release(*allocation);
  for (const AllocationId holder : holders) cache.release(holder);
}

TEST_CASE("A closed session's end goes first; an open fork of it keeps its worth") {
  for (const PolicyKind policy : {PolicyKind::kLru, PolicyKind::kValue}) {
    CacheConfig config = small_arena(6);
    config.policy = policy;
    PrefixCache cache = make_prefix_cache(config);
    const auto turn = [&](Token page, CursorId cursor) {
      const auto tokens = prompt({page, page}, 0);
      const AllocationId allocation = cache.allocate(tokens, "", {128, 1, cursor}).value();
      cache.insert(allocation, 128, cache.allocation(allocation).working_slots.front(),
                   CheckpointKind::kTurnEnd);
      cache.release(allocation);
    };
    const CursorId oldest = cache.open_cursor("");
    const CursorId kept = cache.open_cursor("");
    const CursorId closed = cache.open_cursor("");
    turn(1, oldest);
    turn(2, kept);
    turn(3, closed);
    const CursorId fork = cache.fork_cursor(kept);
    cache.close_cursor(kept);
    cache.close_cursor(closed);
    serve(cache, prompt({4, 4}, 0), 128);
    const auto usable = [&](Token page) {
      return cache.match(prompt({page, page}), "", std::nullopt).usable_tokens;
    };
    CHECK(usable(3) == 0);
    CHECK(usable(2) == 128);
    CHECK(usable(1) == 128);
    cache.close_cursor(fork);
    cache.check_integrity();
  }
}
