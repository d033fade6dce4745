// How policies are compared: the sample of the traffic, and Marconi's score.
#include <doctest/doctest.h>

#include <map>
#include <vector>

#include "policy/marconi_policy.h"
#include "tests/cache_life.h"
#include "trials/traffic_sample.h"

using namespace tasuki::cache;

TEST_CASE("TrafficSample: turns of a conversation meet one coin, about one in so many is taken") {
  TrafficSample sample(8);
  int taken = 0;
  for (Token conversation = 0; conversation < 2000; ++conversation) {
    std::vector<Token> tokens = prompt({conversation});
    const bool first = sample.take("", tokens);
    tokens.insert(tokens.end(), 500, 7);
    CHECK(sample.take("", tokens) == first);
    taken += first ? 1 : 0;
  }
  CHECK(taken > 200);
  CHECK(taken < 300);
}

TEST_CASE("TrafficSample: a start that all share does not decide for all") {
  TrafficSample sample(8);
  int taken = 0;
  for (Token user = 0; user < 2000; ++user) {
    taken += sample.take("", prompt({1, 2, 3, 1000 + user})) ? 1 : 0;
  }
  CHECK(taken > 150);
  CHECK(taken < 350);
}

TEST_CASE("TrafficSample: one in one takes all; salts meet different coins") {
  TrafficSample all(1);
  CHECK(all.take("", prompt({1})));
  TrafficSample sample(8);
  int taken = 0;
  for (int i = 0; i < 200; ++i) taken += sample.take(std::to_string(i), prompt({1})) ? 1 : 0;
  CHECK(taken > 5);
  CHECK(taken < 60);
}

TEST_CASE("MarconiPolicy: recency and saved prefill a page add up; forks stay") {
  const EvictionItem old_rich{EvictionKind::kCheckpoint, 1, NodeId{1}, std::nullopt};
  const EvictionItem old_poor{EvictionKind::kCheckpoint, 2, NodeId{2}, std::nullopt};
  const EvictionItem young_poor{EvictionKind::kCheckpoint, 3, NodeId{3}, std::nullopt};
  const EvictionItem fork{EvictionKind::kCheckpoint, 0, NodeId{4}, std::nullopt};
  const EvictionItem worthless{EvictionKind::kLeafPages, 9, NodeId{5}, std::nullopt};
  for (const double alpha : {0.0, 0.5}) {
    MarconiPolicy policy(alpha);
    policy.advance(0);
    policy.add(old_rich, {.gain = 1000, .pages = 1});
    policy.add(fork, {.gain = 0, .pages = 1, .paths_below = 2});
    policy.advance(0);
    policy.add(old_poor, {.gain = 1, .pages = 1});
    for (int i = 0; i < 5; ++i) policy.advance(0);
    policy.add(young_poor, {.gain = 1, .pages = 1});
    policy.add(worthless);
    CHECK(policy.victim() == worthless);
    policy.remove(worthless);
    CHECK(policy.victim() == (alpha == 0 ? old_rich : old_poor));
    CHECK(policy.size() == 4);
    for (const EvictionItem& item : {old_rich, old_poor, young_poor}) policy.remove(item);
    CHECK(policy.victim() == fork);
  }
}
