// RunTrie against a scan of all runs.
#include "nodes/run_trie.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <random>
#include <vector>

namespace tasuki::cache {
namespace {

using Run = std::vector<Token>;

// Runs of few tokens and lengths, so many are prefixes of each other; also the extreme tokens.
Run random_run(std::mt19937& random, std::size_t most) {
  constexpr Token kTokens[] = {
      0, 1, 2, -1, std::numeric_limits<Token>::max(), std::numeric_limits<Token>::min()};
  Run run(random() % (most + 1));
  for (Token& token : run) token = kTokens[random() % 6 * (random() % 2)];
  return run;
}

bool starts(const Run& start, const Run& run) {
  return start.size() <= run.size() && std::equal(start.begin(), start.end(), run.begin());
}

TEST_CASE("a trie of runs answers as a scan of them all does") {
  std::mt19937 random(3);
  for (const std::size_t most : {2U, 5U, 63U}) {
    std::vector<Run> runs;  // by leaf; `in` lists the present ones
    std::vector<std::size_t> in;
    RunTrie<NodeId> trie;
    const auto run_of = [&](NodeId leaf) {
      return Tokens(runs[static_cast<std::size_t>(raw(leaf))]);
    };
    for (int step = 0; step < 6'000; ++step) {
      // Grow, shrink to nothing, and grow again over returned memory.
      const bool grows = step / 1'000 % 2 == 0;
      const Run run = random_run(random, most);
      const auto equal = std::ranges::find_if(in, [&](std::size_t i) { return runs[i] == run; });
      if (random() % 4 != 0 ? grows : !grows) {
        if (equal == in.end()) {
          runs.push_back(run);
          trie.insert(runs.back(), static_cast<NodeId>(runs.size() - 1), run_of);
          in.push_back(runs.size() - 1);
        }
      } else if (!in.empty()) {
        const auto gone = in.begin() + static_cast<std::ptrdiff_t>(random() % in.size());
        trie.erase(runs[*gone]);
        in.erase(gone);
      }
      REQUIRE(trie.empty() == in.empty());
      const Run asked = random_run(random, most + 3);
      std::int64_t longest = 0;
      std::vector<Run> expected;
      for (const std::size_t i : in) {
        longest = std::max(longest, common_tokens(runs[i], asked));
        if (starts(runs[i], asked)) expected.push_back(runs[i]);
      }
      std::ranges::sort(expected, {}, [](const Run& each) { return each.size(); });
      const auto nearest = trie.nearest(asked);
      REQUIRE(nearest.has_value() == !in.empty());
      if (nearest) REQUIRE(common_tokens(run_of(*nearest), asked) == longest);
      std::vector<Run> visited;
      trie.for_each_start(asked, run_of, [&](NodeId leaf) {
        visited.push_back(runs[static_cast<std::size_t>(raw(leaf))]);
      });
      REQUIRE(visited == expected);
    }
  }
}

TEST_CASE("what a trie reads of many runs is one of them") {
  std::mt19937 random(5);
  std::vector<Run> runs;
  RunTrie<NodeId> trie;
  std::int64_t reads = 0;
  const auto run_of = [&](NodeId leaf) {
    ++reads;
    return Tokens(runs[static_cast<std::size_t>(raw(leaf))]);
  };
  runs.reserve(20'000);
  for (int i = 0; i < 20'000; ++i) {
    runs.push_back({151644, 872, 198, i, static_cast<Token>(random())});
    trie.insert(runs.back(), static_cast<NodeId>(i), run_of);
  }
  CHECK(reads == 19'999);
  reads = 0;
  trie.for_each_start(runs[777], run_of, [](NodeId) {});
  CHECK(reads == 1);
}

}  // namespace
}  // namespace tasuki::cache
