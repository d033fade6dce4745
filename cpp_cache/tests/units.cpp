// The parts below PrefixCache, one by one.
#include <doctest/doctest.h>

#include <memory>
#include <random>
#include <set>
#include <vector>

#include "alloc/id_set.h"
#include "alloc/slab_allocator.h"
#include "core/errors.h"
#include "nodes/ghost_list.h"
#include "policy/lru_policy.h"
#include "tests/cache_life.h"
#include "tree/radix_tree.h"
#include "tree/tree_check.h"

using namespace tasuki::cache;

TEST_CASE("SlabAllocator fills whole slabs first, then gaps, smallest id first") {
  SlabAllocator slabs(small_arena(4));
  const auto first = slabs.take_pages(4);
  CHECK(first == std::vector{PageId{0}, PageId{1}, PageId{2}, PageId{4}});
  CHECK(slabs.take_pages(1).front() == PageId{5});
  CHECK(slabs.take_slot() == SlotId{2});
  CHECK(slabs.fits(4, 0));
  CHECK_FALSE(slabs.fits(2, 1));
  CHECK(slabs.fits(1, 1));
  slabs.check();
}

TEST_CASE("SlabAllocator: a slab changes kind when its last page comes back") {
  SlabAllocator slabs(small_arena(1));
  const auto pages = slabs.take_pages(3);
  CHECK_FALSE(slabs.fits(0, 1));
  for (const PageId page : pages) slabs.give_back(page, Owner::kWorking);
  CHECK(slabs.take_slot() == SlotId{0});
  CHECK(slabs.slabs_of_slots() == 1);
  CHECK(slabs.page_counts().total == 0);
  slabs.check();
}

TEST_CASE("SlabAllocator refuses an owner that does not hold the id") {
  SlabAllocator slabs(small_arena(1));
  const PageId page = slabs.take_pages(1).front();
  CHECK_THROWS_AS(slabs.hand_over(page, Owner::kTree, Owner::kGranted), IntegrityError);
  CHECK_THROWS_AS(slabs.give_back(page, Owner::kQuarantined), IntegrityError);
  CHECK(slabs.owner(page) == Owner::kWorking);
}

TEST_CASE("SlabAllocator: slabs whose pages are the tree's or free, the first one too") {
  SlabAllocator slabs(small_arena(3));
  const auto first = slabs.take_pages(3);
  const auto second = slabs.take_pages(3);
  CHECK(slabs.slabs_without_foreign_pages().empty());
  for (const PageId page : first) slabs.hand_over(page, Owner::kWorking, Owner::kTree);
  slabs.hand_over(second.front(), Owner::kWorking, Owner::kTree);
  CHECK(slabs.slabs_without_foreign_pages() == std::vector<std::int64_t>{0});
}

TEST_CASE("SlabAllocator: a slab may be emptied once the gaps are as many as its pages") {
  SlabAllocator slabs(small_arena(3));
  const auto pages = slabs.take_pages(6);
  const auto give_back = [&](std::size_t page) { slabs.give_back(pages[page], Owner::kWorking); };
  give_back(3);
  give_back(0);
  CHECK(slabs.slabs_to_empty().empty());
  give_back(4);
  CHECK(slabs.slabs_to_empty() == std::vector<std::int64_t>{1, 0});
}

TEST_CASE("LruPolicy: worthless KV, then the least recently used, ties by id") {
  LruPolicy policy;
  const EvictionItem old_state{EvictionKind::kCheckpoint, 1, NodeId{5}, std::nullopt};
  const EvictionItem twin_state{EvictionKind::kCheckpoint, 1, NodeId{4}, std::nullopt};
  const EvictionItem young_leaf{EvictionKind::kLeafPages, 9, NodeId{6}, std::nullopt};
  for (const auto& item : {old_state, twin_state, young_leaf}) policy.add(item);
  CHECK(policy.victim() == young_leaf);
  policy.remove(young_leaf);
  CHECK(policy.victim() == twin_state);
  policy.remove(twin_state);
  CHECK(policy.victim() == old_state);
  policy.remove(old_state);
  CHECK_FALSE(policy.victim());
}

TEST_CASE("LruPolicy: a state on probation goes before an older one that is not") {
  LruPolicy policy;
  const EvictionItem old_state{EvictionKind::kCheckpoint, 1, NodeId{5}, std::nullopt};
  const EvictionItem tried_tail{EvictionKind::kTail, 8, NodeId{6}, TailId{1}, true};
  const EvictionItem tried_state{EvictionKind::kCheckpoint, 9, NodeId{4}, std::nullopt, true};
  const EvictionItem leaf{EvictionKind::kLeafPages, 10, NodeId{7}, std::nullopt};
  for (const auto& item : {old_state, tried_state, tried_tail, leaf}) policy.add(item);
  for (const auto& item : {leaf, tried_tail, tried_state, old_state}) {
    CHECK(policy.victim() == item);
    CHECK(policy.contains(item));
    policy.remove(item);
  }
  CHECK_FALSE(policy.victim());
}

TEST_CASE("GhostList is bounded in number and in tokens") {
  GhostList ghosts(2);
  const Ghost first{1, NodeId{1}, std::nullopt};
  const Ghost second{2, NodeId{2}, std::nullopt};
  ghosts.add(second, 64);
  ghosts.add(first, 64);
  CHECK_FALSE(ghosts.excess());
  ghosts.add({3, NodeId{3}, std::nullopt}, 64);
  CHECK(ghosts.excess() == first);
  ghosts.remove(first, 64);
  CHECK_FALSE(ghosts.excess());
  ghosts.remove(second, 64);
  ghosts.add(second, 2 * GhostList::kTokensPerGhost);
  CHECK(ghosts.excess() == second);
}

TEST_CASE("RadixTree: a split keeps id, state and pins on the deeper part") {
  RadixTree tree(std::make_unique<LruPolicy>(), small_arena());
  const NodeId root = tree.open_root("");
  const auto tokens = prompt({1, 2, 3}, 0);
  const NodeId node = tree.add_child(root, tokens, {PageId{0}, PageId{1}, PageId{2}}, 1);
  tree.attach_checkpoint(node, SlotId{7}, {.kind = CheckpointKind::kMark}, 2);
  tree.pins().pin(node, AllocationId{1}, 3);
  CHECK(tree.pins().pages() == 3);
  const NodeId upper = tree.split(node, 64);
  CHECK(tree.node(upper).depth == 64);
  CHECK(tree.node(node).parent == upper);
  CHECK(tree.node(node).checkpoint->slot == SlotId{7});
  CHECK(tree.pins().pages() == 3);
  CHECK(tree.pages_to({node, 192}) == std::vector{PageId{0}, PageId{1}, PageId{2}});
  CHECK(tree.cover(node, 64).node == upper);
  check_tree(tree, 3);
  tree.pins().unpin(node, AllocationId{1});
  CHECK(tree.pins().pages() == 0);
  check_tree(tree, 3);
}

TEST_CASE("An allocation gives no token before those it keeps") {
  PrefixCache cache = make_prefix_cache(small_arena());
  const auto tokens = prompt({1, 2, 3});
  serve(cache, tokens, 192);
  const AllocationId id =
      cache.allocate_to_receive(prompt({1, 2, 3, 4}), "", terms(prompt({1, 2, 3, 4}))).value();
  const Allocation& allocation = cache.allocation(id);
  CHECK(allocation.first_kept == 192);
  CHECK(allocation.run(192, 193).front() == 4);
  CHECK_THROWS_AS(allocation.run(191, 193), IntegrityError);
  CHECK_THROWS_AS(allocation.run(200, 199), IntegrityError);
  CHECK_THROWS_AS(allocation.run(192, allocation.tokens() + 1), IntegrityError);
  CHECK(cache.match(prompt({1, 9}), "", std::nullopt).miss_reasons.in_flight == 0);
}

TEST_CASE("common_tokens compares as memory and stops at the first difference") {
  const std::vector<Token> left{1, 2, 3, 4};
  const std::vector<Token> right{1, 2, 9, 4, 5};
  CHECK(common_tokens(left, right) == 2);
  CHECK(common_tokens(left, left) == 4);
  CHECK(common_tokens({}, left) == 0);
  CHECK(common_tokens(right, Tokens(right).subspan(1)) == 0);
}

TEST_CASE("a set of ids answers as std::set does") {
  std::mt19937 random(7);
  for (const std::int64_t limit : {1, 63, 64, 65, 4096, 4097, 300'000}) {
    IdSet ids(limit);
    std::set<std::int64_t> model;
    for (int step = 0; step < 2'000; ++step) {
      const std::int64_t id = static_cast<std::int64_t>(random()) % limit;
      if (random() % 3 == 0) {
        ids.erase(id);
        model.erase(id);
      } else {
        ids.insert(id);
        model.insert(id);
      }
      REQUIRE(ids.contains(id) == model.contains(id));
      REQUIRE(ids.size() == model.size());
      if (!model.empty()) REQUIRE(*ids.begin() == *model.begin());
    }
    CHECK(std::vector(ids.begin(), ids.end()) == std::vector(model.begin(), model.end()));
    for (const std::int64_t id : model) ids.erase(id);
    CHECK(ids.empty());
    CHECK(ids.begin() == ids.end());
  }
}
