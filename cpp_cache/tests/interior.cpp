// Tests of states inside long first-seen prompts, and of a page's earnings.
#include <doctest/doctest.h>

#include <memory>
#include <vector>

#include "placement/branch_depths.h"
#include "placement/earnings.h"
#include "policy/lru_policy.h"
#include "tests/cache_life.h"
#include "tree/radix_tree.h"

using namespace tasuki::cache;

namespace {

constexpr std::int64_t kSlotTokens = 192;

// `count` prompts of `tokens`, each left once `distance` before its end.
void teach(BranchDepths& depths, int count, std::int64_t tokens, std::int64_t distance) {
  for (int i = 0; i < count; ++i) {
    depths.brought(tokens);
    depths.left(tokens, tokens - distance);
  }
}

// A document of `pages` pages named by `first`, then a question of two pages.
std::vector<Token> question(Token first, std::int64_t pages, Token asked) {
  std::vector<Token> each;
  for (std::int64_t i = 0; i < pages; ++i) {
    each.push_back(first + static_cast<Token>(i));
  }
  each.insert(each.end(), {asked, asked + 1});
  return prompt(each);
}

// Serve the prompt with every proposed state. Returns its match.
Match ask(PrefixCache& cache, const std::vector<Token>& tokens) {
  const AllocationId allocation = cache.allocate(tokens, "", terms(tokens)).value();
  const Match match = cache.allocation(allocation).match;
  const auto keep = [&](std::int64_t boundary, CheckpointKind kind) {
    if (boundary <= match.usable_tokens) return;
    cache.insert(allocation, boundary, cache.take_checkpoint_slot(allocation), kind);
  };
  for (const std::int64_t boundary : match.interior_tokens) {
    keep(boundary, CheckpointKind::kInterior);
  }
  keep(static_cast<std::int64_t>(tokens.size()) / kPageTokens * kPageTokens,
       CheckpointKind::kPromptEnd);
  cache.release(allocation);
  return match;
}

}  // namespace

TEST_CASE("BranchDepths: nothing learnt, or a short run, places nothing") {
  BranchDepths depths(kSlotTokens, 0);
  CHECK(depths.points({6400, 6400, 0}, 0).empty());
  teach(depths, 10, 6400, 128);
  CHECK(depths.points({6400, kSlotTokens, 6400 - kSlotTokens}, 0).empty());
  CHECK_FALSE(depths.points({6400, 6400, 0}, 0).empty());
}

TEST_CASE("BranchDepths: points stand in the fresh part, before where requests leave") {
  BranchDepths depths(kSlotTokens, 1e-3);
  teach(depths, 10, 6400, 500);
  teach(depths, 10, 6400, 3000);
  teach(depths, 10, 6400, 5000);
  teach(depths, 10, 6400, 64);
  const auto points = depths.points({6400, 6000, 400}, 0);
  REQUIRE(points.size() == BranchDepths::kMostPoints);
  std::int64_t before = 400;
  for (const std::int64_t point : points) {
    CHECK(point > before);
    CHECK(point % kPageTokens == 0);
    CHECK(point < 6400);
    before = point;
  }
  CHECK(points.back() <= 6400 - 64);
  CHECK(points.back() > 6400 - 500);
}

TEST_CASE("BranchDepths: a point must save more than its price") {
  BranchDepths depths(kSlotTokens, 0);
  teach(depths, 100, 6400, 640);
  for (int i = 0; i < 100; ++i) depths.brought(6400);
  // One prompt in two is left there: about half of 5,700 tokens.
  CHECK(depths.points({6400, 6400, 0}, 2000).size() == 1);
  CHECK(depths.points({6400, 6400, 0}, 3200).empty());
}

TEST_CASE("BranchDepths: of two places the better one is taken where only one pays") {
  BranchDepths depths(kSlotTokens, 0);
  teach(depths, 90, 6400, 640);
  teach(depths, 10, 6400, 3200);
  const auto points = depths.points({6400, 6400, 0}, 1000);
  REQUIRE(points.size() == 1);
  CHECK(points.front() > 6400 - 1000);
}

TEST_CASE("BranchDepths: what was learnt fades") {
  BranchDepths depths(kSlotTokens, 0);
  teach(depths, 100, 6400, 640);
  CHECK(depths.points({6400, 6400, 0}, 1000).size() == 1);
  for (int i = 0; i < 4096; ++i) depths.brought(6400);
  CHECK(depths.points({6400, 6400, 0}, 1000).empty());
}

TEST_CASE("Earnings: pages are free until something is evicted, then cost what they earn") {
  Earnings earnings;
  for (int i = 0; i < 10; ++i) earnings.request(600, 3);
  CHECK(earnings.price(2) == 0);
  earnings.evicted();
  CHECK(earnings.price(2) == doctest::Approx(400));
}

TEST_CASE("A tree learns where documents are left: the second question resumes inside") {
  PrefixCache cache = make_prefix_cache({400, 4, 3, 4096});
  Match second{};
  for (Token document = 0; document < 12; ++document) {
    const Token name = 1000 * (document + 1);
    const Match first = ask(cache, question(name, 12, 50'000 + document));
    CHECK(first.interior_tokens.size() <= BranchDepths::kMostPoints);
    second = ask(cache, question(name, 12, 60'000 + document));
    CHECK(second.kv_tokens == 12 * kPageTokens);
    if (document == 0) CHECK(second.usable_tokens == 0);
  }
  CHECK(second.checkpoint_kind == CheckpointKind::kInterior);
  CHECK(second.usable_tokens >= 10 * kPageTokens);
  cache.check_integrity();
}

TEST_CASE("RadixTree: a long prompt is known by whoever leaves it, not at a fork or its end") {
  RadixTree tree(std::make_unique<LruPolicy>(), small_arena());
  const NodeId root = tree.open_root("");
  const NodeId upper = tree.add_child(root, prompt({1, 2}, 0), {PageId{0}, PageId{1}}, 1);
  const NodeId lower = tree.add_child(upper, prompt({3, 4}, 0), {PageId{2}, PageId{4}}, 1);
  tree.mark_long_prompt(lower, 7);
  const auto through = [&](NodeId node, std::int64_t depth) {
    return tree.long_prompt_through({node, depth});
  };
  CHECK(through(upper, 64) == 256 + 7);
  CHECK(through(upper, 128) == 256 + 7);
  CHECK(through(lower, 192) == 256 + 7);
  CHECK_FALSE(through(lower, 256));
  tree.mark_long_prompt(upper, 5);
  CHECK(through(upper, 128) == 128 + 5);
  tree.add_child(upper, prompt({5}, 0), {PageId{5}}, 1);
  CHECK_FALSE(through(upper, 128));
}
