// The lists of a node and the pool of nodes.
#include <doctest/doctest.h>

#include <memory>
#include <random>
#include <vector>

#include "nodes/compact_vector.h"
#include "nodes/node_pool.h"
#include "tests/cache_life.h"

using namespace tasuki::cache;

TEST_CASE("CompactVector holds what a vector holds, and owns it") {
  CompactVector<std::shared_ptr<int>> list;
  std::vector<std::shared_ptr<int>> plain;
  std::mt19937 draw(3);
  for (int step = 0; step < 2000; ++step) {
    const auto place = static_cast<std::ptrdiff_t>(draw() % (plain.size() + 1));
    if (draw() % 5 < 3) {
      const auto item = std::make_shared<int>(step);
      list.insert(list.begin() + place, item);
      plain.insert(plain.begin() + place, item);
    } else if (place < static_cast<std::ptrdiff_t>(plain.size())) {
      list.erase(list.begin() + place);
      plain.erase(plain.begin() + place);
    }
    if (step % 300 == 299) {
      const auto odd = [](const std::shared_ptr<int>& item) { return *item % 2 == 1; };
      CHECK(list.erase_if(odd) == std::erase_if(plain, odd));
    }
    REQUIRE(std::vector<std::shared_ptr<int>>(list.begin(), list.end()) == plain);
  }
  CompactVector<std::shared_ptr<int>> other(std::move(list));
  list = std::move(other);
  CHECK(list.size() == plain.size());
  const std::weak_ptr<int> seen = plain.front();
  plain.clear();
  CHECK_FALSE(seen.expired());
  list.erase_if([](const auto&) { return true; });
  CHECK(seen.expired());
  CHECK(list.empty());
}

TEST_CASE("NodePool reuses ids under new serials and never moves a node") {
  NodePool pool;
  const Node* const first = &pool.make();
  for (int i = 1; i < 1000; ++i) pool.make();
  CHECK(first == &pool[NodeId{0}]);
  const std::uint64_t serial = pool[NodeId{7}].serial;
  pool[NodeId{7}].tokens = {1, 2, 3};
  pool.drop(NodeId{7});
  CHECK_FALSE(pool.holds(NodeId{7}, serial));
  const Node& again = pool.make();
  CHECK(again.id == NodeId{7});
  CHECK(again.serial > serial);
  CHECK(again.tokens.empty());
  int alive = 0;
  pool.drop(NodeId{3});
  pool.for_each([&](const Node& node) { alive += node.id != NodeId{3}; });
  CHECK(alive == 999);
}

TEST_CASE("a child is found among however many") {
  for (const std::int64_t count : {1, 2, 3, 17, 500}) {
    PrefixCache cache = make_prefix_cache({count + 8, 4, 1, 64});
    for (Token head = 0; head < count; ++head) {
      const auto tokens = prompt({head}, 0);
      const AllocationId allocation =
          cache.allocate(tokens, "", {kPageTokens, 0, std::nullopt}).value();
      cache.insert(allocation, kPageTokens, std::nullopt, CheckpointKind::kMark);
      cache.release(allocation);
    }
    for (Token head = 0; head < count + 20; ++head) {
      const Match match = cache.match(prompt({head}), "", std::nullopt);
      CHECK(match.kv_tokens == (head < count ? kPageTokens : 0));
    }
    cache.check_integrity();
  }
}
