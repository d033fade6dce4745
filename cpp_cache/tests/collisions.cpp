// Pages with equal hashes: found by tests/cache/colliding_pages.py, seed 0, in the first lane.
#include <doctest/doctest.h>

#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "tests/cache_life.h"
#include "tree/radix_tree.h"

using namespace tasuki::cache;

namespace {

// Return a page with these at every fourth token, 7 elsewhere.
std::vector<Token> page_of(const std::vector<Token>& lane) {
  std::vector<Token> page(static_cast<std::size_t>(kPageTokens), 7);
  for (std::size_t i = 0; i < lane.size(); ++i) page[4 * i] = lane[i];
  return page;
}

std::pair<std::vector<Token>, std::vector<Token>> twins() {
  return {page_of({1729, 1196, 193, 819, 1157, 607, 1730, 377, 496, 23, 500, 379, 661, 201, 1566,
                   1867}),
          page_of({1787, 1205, 448, 1490, 1940, 744, 1351, 831, 302, 116, 337, 502, 1788, 506, 561,
                   1885})};
}

std::vector<Token> followed(std::vector<Token> page, Token token, std::size_t count) {
  page.insert(page.end(), count, token);
  return page;
}

Match seen(const PrefixCache& cache, const std::vector<Token>& tokens) {
  return cache.match(tokens, "", std::nullopt);
}

}  // namespace

TEST_CASE("Two pages have one hash") {
  const auto [one, other] = twins();
  REQUIRE(one != other);
  REQUIRE(PageKey(one).hash == PageKey(other).hash);
}

TEST_CASE("PrefixCache: what stands behind one page is no hit for another of its hash") {
  const auto [one, other] = twins();
  PrefixCache cache = make_prefix_cache(small_arena());
  serve(cache, followed(one, 1, 1), kPageTokens);
  CHECK(seen(cache, followed(one, 1, 1)).usable_tokens == kPageTokens);
  CHECK(seen(cache, followed(other, 1, 1)).kv_tokens == 0);
  serve(cache, followed(other, 2, 65), 2 * kPageTokens);
  cache.check_integrity();
  // Siblings of one hash, each found by its own tokens.
  CHECK(seen(cache, followed(one, 1, 1)).usable_tokens == kPageTokens);
  CHECK(seen(cache, followed(other, 2, 65)).usable_tokens == 2 * kPageTokens);
  CHECK(seen(cache, followed(one, 2, 65)).kv_tokens == kPageTokens);
}

TEST_CASE("PrefixCache: children of one hash below a page") {
  const auto [one, other] = twins();
  const std::vector<Token> start(static_cast<std::size_t>(kPageTokens), 3);
  const auto under = [&](const std::vector<Token>& page) {
    std::vector<Token> tokens = start;
    tokens.insert(tokens.end(), page.begin(), page.end());
    return followed(tokens, 1, 1);
  };
  PrefixCache cache = make_prefix_cache(small_arena());
  serve(cache, under(one), 2 * kPageTokens);
  CHECK(seen(cache, under(other)).kv_tokens == kPageTokens);
  serve(cache, under(other), 2 * kPageTokens);
  for (const auto& page : {one, other}) {
    CHECK(seen(cache, under(page)).usable_tokens == 2 * kPageTokens);
  }
  cache.check_integrity();
}
