// The lists of a node and the pool of nodes.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <vector>

#include "nodes/child_list.h"
#include "nodes/compact_vector.h"
#include "nodes/node_pool.h"
#include "nodes/tail_list.h"
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
    REQUIRE(std::vector<std::shared_ptr<int>>(list.begin(), list.end()) == plain);
  }
  CompactVector<std::shared_ptr<int>> other(std::move(list));
  list = std::move(other);
  CHECK(list.size() == plain.size());
  const std::weak_ptr<int> seen = plain.front();
  plain.clear();
  CHECK_FALSE(seen.expired());
  while (!list.empty()) list.erase(list.begin());
  CHECK(seen.expired());
  CHECK(list.empty());
}

TEST_CASE("ChildList holds what an ordered set holds, and walks in its order") {
  std::mt19937 draw(9);
  // Few pages: many children under one hash, and runs without a gap up to the end.
  for (const Token pages : {2, 40, 1'000'000}) {
    ChildList list;
    std::set<ChildEntry> plain;
    std::map<NodeId, std::vector<Token>> page_of;
    const auto steps = pages == 2 ? 1'500 : 12'000;
    for (int step = 0; step < steps; ++step) {
      // Grows, then shrinks to nothing.
      if (page_of.empty() || draw() % 10 < (step < steps / 2 ? 7U : 2U)) {
        const auto child = static_cast<NodeId>(step);
        const auto token = static_cast<Token>(draw() % static_cast<std::uint32_t>(pages));
        const auto page = prompt({token}, 0);
        list.insert(child, PageKey(page).hash);
        plain.insert({PageKey(page).hash, child});
        page_of.emplace(child, page);
      } else {
        const auto at = page_of.lower_bound(static_cast<NodeId>(draw() % step));
        const auto gone = at == page_of.end() ? page_of.begin() : at;
        list.erase(gone->first, PageKey(gone->second).hash);
        plain.erase({PageKey(gone->second).hash, gone->first});
        page_of.erase(gone);
      }
      REQUIRE(list.size() == plain.size());
      REQUIRE(list.empty() == plain.empty());
      if (step % 64 != 0) continue;
      REQUIRE(std::equal(list.begin(), list.end(), plain.begin(), plain.end()));
      for (const auto& [child, page] : page_of) {
        const std::uint64_t hash = PageKey(page).hash;
        std::vector<NodeId> alike;
        REQUIRE(list.find(hash, [&](NodeId other) {
          alike.push_back(other);
          return other == child;
        }) == child);
        CHECK(alike.front() == plain.lower_bound({hash, NodeId{0}})->node);
      }
      CHECK_FALSE(list.find(draw(), [](NodeId) { return true; }));
    }
  }
}

TEST_CASE("a child is added and taken among very many without a look at most") {
  // Evenly spread hashes: runs without a gap stay short.
  ChildList list;
  std::mt19937 draw(4);
  std::vector<std::vector<Token>> pages;
  for (int i = 0; i < 50'000; ++i) {
    pages.push_back(prompt({static_cast<Token>(draw())}, 0));
    list.insert(static_cast<NodeId>(i), PageKey(pages.back()).hash);
  }
  std::int64_t looks = 0;
  for (int i = 0; i < 50'000; ++i) {
    const auto child = static_cast<NodeId>(i);
    REQUIRE(list.find(PageKey(pages[static_cast<std::size_t>(i)]).hash, [&](NodeId other) {
      ++looks;
      return other == child;
    }) == child);
  }
  CHECK(looks < 50'100);
  std::size_t walked = 0;
  for (int i = 0; i < 49'000; ++i) {
    list.erase(static_cast<NodeId>(i), PageKey(pages[static_cast<std::size_t>(i)]).hash);
  }
  for ([[maybe_unused]] const ChildEntry entry : list) ++walked;
  CHECK(walked == 1'000);
}

TEST_CASE("TailList finds what a scan of all tails finds") {
  std::mt19937 draw(13);
  const auto is_start = [](const std::vector<Token>& start, const std::vector<Token>& run) {
    return start.size() <= run.size() && std::equal(start.begin(), start.end(), run.begin());
  };
  TailList list;
  std::map<TailId, Tail> plain;
  std::int32_t made = 0;
  for (int step = 0; step < 8'000; ++step) {
    std::vector<Token> tokens(1 + draw() % 6);
    for (Token& token : tokens) token = static_cast<Token>(draw() % 3);
    const Tail* const found = list.find(Tokens(tokens));
    const auto same = std::ranges::find_if(
        plain, [&](const auto& entry) { return entry.second.tokens == tokens; });
    REQUIRE((found == nullptr) == (same == plain.end()));
    const bool grows = step / 1'000 % 2 == 0;
    if (same == plain.end() && (grows || draw() % 4 == 0)) {
      ++made;
      const Tail tail{TailId{made}, tokens, PageId{made},
                      Checkpoint{SlotId{made}, CheckpointKind::kTurnEnd, 64, 1}};
      list.add(tail);
      plain.emplace(tail.id, tail);
    } else if (same != plain.end() && same->second.resident()) {
      const auto held = list.evict(same->first, 7);
      CHECK(held == std::pair(*same->second.page, same->second.state->slot));
      same->second.page.reset();
    } else if (same != plain.end()) {
      list.forget(same->first);
      plain.erase(same);
    }
    if (!plain.empty() && plain.rbegin()->second.resident() && draw() % 2 == 0) {
      const PageId moved{++made};
      list.move_page(*plain.rbegin()->second.page, moved);
      plain.rbegin()->second.page = moved;
    }
    std::vector<Token> asked(draw() % 9);
    for (Token& token : asked) token = static_cast<Token>(draw() % 3);
    std::int64_t resident = 0;
    std::int64_t common = 0;
    std::set<TailId> starts;
    for (const auto& [id, tail] : plain) {
      if (is_start(tail.tokens, asked)) starts.insert(id);
      REQUIRE(list.find(id)->page == tail.page);
      if (!tail.resident()) continue;
      ++resident;
      common = std::max(common, common_tokens(tail.tokens, asked));
      REQUIRE(list.find(*tail.page)->id == id);
    }
    std::set<TailId> visited;
    list.for_each_start(asked, [&](const Tail& tail) { visited.insert(tail.id); });
    REQUIRE(visited == starts);
    REQUIRE(list.resident() == resident);
    REQUIRE(list.common_with(asked) == common);
    REQUIRE(list.size() == static_cast<std::int64_t>(plain.size()));
    REQUIRE(std::ranges::equal(list, plain, {}, &TailList::ById::value_type::first,
                               &std::map<TailId, Tail>::value_type::first));
  }
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
