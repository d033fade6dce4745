// Tests of views against the tree.
#include <doctest/doctest.h>

#include <random>
#include <vector>

#include "tests/cache_life.h"

using namespace tasuki::cache;

namespace {

void check_sums(const TreeView& view) {
  std::vector<Standing> sums(view.size());
  for (std::size_t i = view.size(); i-- > 0;) {
    const ViewedNode& node = view[i];
    sums[i] += node.hidden;
    sums[i] += Standing{node.tokens, node.tokens > 0 ? 1 : 0,
                        static_cast<std::int32_t>(node.tails) + (node.state ? 1 : 0)};
    CHECK(sums[i] == node.standing);
    if (!node.above) continue;
    REQUIRE(*node.above < static_cast<std::int32_t>(i));
    sums[static_cast<std::size_t>(*node.above)] += sums[i];
  }
}

}  // namespace

TEST_CASE("the sums of a view are what stands, through splits, evictions and flushes") {
  std::mt19937 random(11);
  PrefixCache cache = make_prefix_cache(small_arena(12));
  for (int step = 0; step < 300; ++step) {
    std::vector<Token> pages(1 + random() % 5);
    for (Token& page : pages) page = static_cast<Token>(random() % 3);
    const auto tokens = prompt(pages, 1 + static_cast<std::int64_t>(random() % 40));
    const auto allocation = cache.allocate(tokens, "", terms(tokens));
    if (allocation) {
      const auto slot = cache.allocation(*allocation).working_slots.front();
      cache.insert(*allocation, static_cast<std::int64_t>(tokens.size()), slot,
                   CheckpointKind::kTurnEnd);
      cache.release(*allocation);
    }
    if (step % 100 == 99) cache.flush();
    const auto all = cache.view(std::nullopt, 1000);
    REQUIRE(all);
    check_sums(*all);
    CHECK(all->front().standing.nodes == cache.stats().nodes);
    CHECK(all->front().standing.states == cache.stats().checkpoints);
    const auto few = cache.view(std::nullopt, 3);
    check_sums(*few);
    CHECK(few->size() <= 3);
  }
}
