// One test an invariant of hybrid_tree.h, by its number.
#include <doctest/doctest.h>

#include <vector>

#include "cpp_cache/errors.h"
#include "tree_life.h"

using namespace tasuki::cache;

TEST_CASE("invariant 1: every id has one owner through a whole hand-over") {
  HybridTree tree(small_arena());
  const auto tokens = prompt({1, 2, 3});
  const auto balanced = [&] {
    tree.check_integrity();
    const TreeStats stats = tree.stats();
    for (const PoolCounts& pool : {stats.pages, stats.slots}) {
      CHECK(pool.free + pool.working + pool.tree + pool.granted + pool.quarantined == pool.total);
    }
    return stats;
  };
  const LeaseId lease = tree.lease_receive(tokens, "", terms(tokens, 2)).value();
  CHECK(balanced().pages.working == 4);
  tree.grant(lease);
  CHECK(balanced().pages.granted == 4);
  CHECK(balanced().slots.granted == 2);
  const QuarantineId quarantine = tree.quarantine(lease);
  CHECK(balanced().pages.quarantined == 4);
  tree.free_quarantined(quarantine);
  CHECK(balanced().slabs_free == 8);
}

TEST_CASE("invariant 2: a checkpoint stays at its boundary whatever splits around it") {
  HybridTree tree(small_arena(12));
  serve(tree, prompt({1, 2, 3}), 192);
  serve(tree, prompt({1, 2, 4}), 192);
  serve(tree, prompt({1, 5}), 128);
  tree.check_integrity();
  CHECK(tree.match(prompt({1, 2, 3}), "", std::nullopt).usable_tokens == 192);
  CHECK(tree.match(prompt({1, 2, 4}), "", std::nullopt).usable_tokens == 192);
  CHECK(tree.match(prompt({1, 5}), "", std::nullopt).usable_tokens == 128);
  CHECK(tree.match(prompt({1, 2, 9}), "", std::nullopt).usable_tokens == 0);
}

TEST_CASE("invariant 3: what is leased outlives flush, and a state's eviction frees no KV") {
  HybridTree tree(small_arena());
  const auto tokens = prompt({1, 2});
  serve(tree, tokens, 128);
  const LeaseId lease = tree.lease(tokens, "", terms(tokens)).value();
  CHECK(tree.flush() == 0);
  CHECK(tree.match(tokens, "", std::nullopt).usable_tokens == 128);
  tree.release(lease);

  const LeaseId reader = tree.lease_receive(tokens, "", terms(tokens)).value();
  CHECK(tree.flush() == 0);
  CHECK(tree.match(tokens, "", std::nullopt).usable_tokens == 0);
  CHECK(tree.match(tokens, "", std::nullopt).kv_tokens == 128);
  tree.check_integrity();
  tree.release(reader);
  CHECK(tree.flush() == 1);
}

TEST_CASE("invariant 4: a lease takes all or nothing, and exhaustion is an answer") {
  HybridTree tree(small_arena(3));
  const auto tokens = prompt({1, 2, 3}, 0);
  const LeaseId holder = tree.lease(tokens, "", terms(tokens)).value();
  const auto other = prompt({4, 5, 6}, 0);
  const TreeStats before = tree.stats();
  CHECK_FALSE(tree.lease(other, "", terms(other, 1)));
  CHECK(tree.stats().pages.free == before.pages.free);
  CHECK(tree.stats().slots.working == before.slots.working);
  CHECK(tree.take_checkpoint_slot(holder));  // the last free slab
  CHECK_FALSE(tree.take_checkpoint_slot(holder));
  CHECK_FALSE(tree.extend(holder, 384));
  CHECK_THROWS_AS(tree.extend(holder, 10000), ImpossibleRequest);
  CHECK_THROWS_AS(tree.lease(other, "", terms(other, 3)), ImpossibleRequest);
  tree.release(holder);
  CHECK_THROWS_AS(tree.release(holder), InvalidArgument);
  CHECK(tree.lease(other, "", terms(other, 1)));
  tree.check_integrity();
}

TEST_CASE("invariant 5: same calls, same decisions") {
  const auto life = [] {
    HybridTree tree(small_arena(5));
    std::vector<std::int32_t> ids;
    for (const Token turn : {1, 2, 3, 1, 4, 2}) {
      const auto tokens = prompt({turn, turn, turn});
      const LeaseId lease = tree.lease(tokens, "", terms(tokens)).value();
      for (const PageId page : tree.lease_of(lease).pages) ids.push_back(raw(page));
      const SlotId slot = tree.lease_of(lease).working_slots.front();
      ids.push_back(raw(slot));
      tree.publish(lease, 128, slot, CheckpointKind::kMark);
      tree.release(lease);
      tree.check_integrity();
    }
    return ids;
  };
  CHECK(life() == life());
}

TEST_CASE("invariant 6: the last token is always computed") {
  HybridTree tree(small_arena());
  const auto tokens = prompt({1, 2}, 0);
  serve(tree, tokens, 128);
  const Match match = tree.match(tokens, "", std::nullopt);
  CHECK(match.kv_tokens == 128);
  CHECK(match.usable_tokens == 0);
  CHECK(match.causes.alignment == 128);
  const LeaseId lease = tree.lease_receive(tokens, "", terms(tokens)).value();
  CHECK(tree.lease_of(lease).cached_tokens == 64);
  tree.check_integrity();
}

TEST_CASE(
    "a session's cursor finds what a full match finds, and checks the page before its place") {
  HybridTree tree(small_arena(12));
  const CursorId cursor = tree.open_cursor("");
  const auto tokens = prompt({1, 2, 3});
  LeaseTerms with_cursor = terms(tokens);
  with_cursor.cursor = cursor;
  const LeaseId lease = tree.lease(tokens, "", with_cursor).value();
  tree.publish(lease, 192, tree.lease_of(lease).working_slots.front(), CheckpointKind::kTurnEnd);
  tree.release(lease);
  CHECK(tree.match(prompt({1, 2, 3, 4}), "", cursor).usable_tokens == 192);
  CHECK(tree.match(prompt({1, 2, 4, 4}), "", cursor).usable_tokens == 0);
  CHECK(tree.match(prompt({1}), "", cursor).kv_tokens == 64);
}
