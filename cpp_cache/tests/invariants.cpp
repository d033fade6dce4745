// One test an invariant of cache/prefix_cache.h, by its number.
#include <doctest/doctest.h>

#include <vector>

#include "core/errors.h"
#include "tests/cache_life.h"

using namespace tasuki::cache;

TEST_CASE("invariant 1: every id has one owner through a whole hand-over") {
  PrefixCache cache = make_prefix_cache(small_arena());
  const auto tokens = prompt({1, 2, 3});
  const auto balanced = [&] {
    cache.check_integrity();
    const CacheStats stats = cache.stats();
    for (const PoolCounts& pool : {stats.pages, stats.slots}) {
      CHECK(pool.free + pool.working + pool.tree + pool.granted + pool.quarantined == pool.total);
    }
    return stats;
  };
  const AllocationId allocation = cache.allocate_to_receive(tokens, "", terms(tokens, 2)).value();
  CHECK(balanced().pages.working == 4);
  cache.grant(allocation);
  CHECK(balanced().pages.granted == 4);
  CHECK(balanced().slots.granted == 2);
  const QuarantineId quarantine = cache.quarantine(allocation);
  CHECK(balanced().pages.quarantined == 4);
  cache.free_quarantined(quarantine);
  CHECK(balanced().slabs_free == 8);
}

TEST_CASE("invariant 2: a checkpoint stays at its boundary whatever splits around it") {
  PrefixCache cache = make_prefix_cache(small_arena(12));
  serve(cache, prompt({1, 2, 3}), 192);
  serve(cache, prompt({1, 2, 4}), 192);
  serve(cache, prompt({1, 5}), 128);
  cache.check_integrity();
  CHECK(cache.match(prompt({1, 2, 3}), "", std::nullopt).usable_tokens == 192);
  CHECK(cache.match(prompt({1, 2, 4}), "", std::nullopt).usable_tokens == 192);
  CHECK(cache.match(prompt({1, 5}), "", std::nullopt).usable_tokens == 128);
  CHECK(cache.match(prompt({1, 2, 9}), "", std::nullopt).usable_tokens == 0);
}

TEST_CASE("invariant 3: what is allocated outlives flush, and a state's eviction frees no KV") {
  PrefixCache cache = make_prefix_cache(small_arena());
  const auto tokens = prompt({1, 2});
  serve(cache, tokens, 128);
  const AllocationId allocation = cache.allocate(tokens, "", terms(tokens)).value();
  CHECK(cache.flush() == 0);
  CHECK(cache.match(tokens, "", std::nullopt).usable_tokens == 128);
  cache.release(allocation);

  const AllocationId reader = cache.allocate_to_receive(tokens, "", terms(tokens)).value();
  CHECK(cache.flush() == 0);
  CHECK(cache.match(tokens, "", std::nullopt).usable_tokens == 0);
  CHECK(cache.match(tokens, "", std::nullopt).kv_tokens == 128);
  cache.check_integrity();
  cache.release(reader);
  CHECK(cache.flush() == 1);
}

TEST_CASE("invariant 4: an allocation takes all or nothing, and exhaustion is an answer") {
  PrefixCache cache = make_prefix_cache(small_arena(3));
  const auto tokens = prompt({1, 2, 3}, 0);
  const AllocationId holder = cache.allocate(tokens, "", terms(tokens)).value();
  const auto other = prompt({4, 5, 6}, 0);
  const CacheStats before = cache.stats();
  CHECK_FALSE(cache.allocate(other, "", terms(other, 1)));
  CHECK(cache.stats().pages.free == before.pages.free);
  CHECK(cache.stats().slots.working == before.slots.working);
  CHECK(cache.take_checkpoint_slot(holder));  // the last free slab
  CHECK_FALSE(cache.take_checkpoint_slot(holder));
  CHECK_FALSE(cache.extend(holder, 384));
  CHECK_THROWS_AS(cache.extend(holder, 10000), ImpossibleRequest);
  CHECK_THROWS_AS(cache.allocate(other, "", terms(other, 3)), ImpossibleRequest);
  cache.release(holder);
  CHECK_THROWS_AS(cache.release(holder), InvalidArgument);
  CHECK(cache.allocate(other, "", terms(other, 1)));
  cache.check_integrity();
}

TEST_CASE("invariant 5: same calls, same decisions") {
  const auto life = [] {
    PrefixCache cache = make_prefix_cache(small_arena(5));
    std::vector<std::int32_t> ids;
    for (const Token turn : {1, 2, 3, 1, 4, 2}) {
      const auto tokens = prompt({turn, turn, turn});
      const AllocationId allocation = cache.allocate(tokens, "", terms(tokens)).value();
      for (const PageId page : cache.allocation(allocation).pages) ids.push_back(raw(page));
      const SlotId slot = cache.allocation(allocation).working_slots.front();
      ids.push_back(raw(slot));
      cache.insert(allocation, 128, slot, CheckpointKind::kMark);
      cache.release(allocation);
      cache.check_integrity();
    }
    return ids;
  };
  CHECK(life() == life());
}

TEST_CASE("invariant 6: the last token is always computed") {
  PrefixCache cache = make_prefix_cache(small_arena());
  const auto tokens = prompt({1, 2}, 0);
  serve(cache, tokens, 128);
  const Match match = cache.match(tokens, "", std::nullopt);
  CHECK(match.kv_tokens == 128);
  CHECK(match.usable_tokens == 0);
  CHECK(match.miss_reasons.alignment == 128);
  const AllocationId allocation = cache.allocate_to_receive(tokens, "", terms(tokens)).value();
  CHECK(cache.allocation(allocation).cached_tokens == 64);
  cache.check_integrity();
}

TEST_CASE(
    "a session's cursor finds what a full match finds, and checks the page before its place") {
  PrefixCache cache = make_prefix_cache(small_arena(12));
  const CursorId cursor = cache.open_cursor("");
  const auto tokens = prompt({1, 2, 3});
  AllocationTerms with_cursor = terms(tokens);
  with_cursor.cursor = cursor;
  const AllocationId allocation = cache.allocate(tokens, "", with_cursor).value();
  cache.insert(allocation, 192, cache.allocation(allocation).working_slots.front(),
               CheckpointKind::kTurnEnd);
  cache.release(allocation);
  CHECK(cache.match(prompt({1, 2, 3, 4}), "", cursor).usable_tokens == 192);
  CHECK(cache.match(prompt({1, 2, 4, 4}), "", cursor).usable_tokens == 0);
  CHECK(cache.match(prompt({1}), "", cursor).kv_tokens == 64);
}

TEST_CASE("An allocation grows by what it lacks, into the gaps of a slab too") {
  PrefixCache cache = make_prefix_cache(small_arena(1));
  const auto tokens = prompt({1}, 0);
  const AllocationId id = cache.allocate(tokens, "", terms(tokens, 0)).value();
  const auto pages = [&] { return cache.allocation(id).pages.size(); };
  REQUIRE(cache.extend(id, 64));
  CHECK(pages() == 1);
  REQUIRE(cache.extend(id, 65));
  CHECK(pages() == 2);
  cache.release(id);
  cache.check_integrity();
}

TEST_CASE("A request that cannot stand beside what it would start from starts from nothing") {
  PrefixCache cache = make_prefix_cache(small_arena(3));
  const auto known = prompt({1, 2});
  const AllocationId first = cache.allocate(known, "", terms(known)).value();
  const SlotId slot = cache.allocation(first).working_slots.front();
  cache.insert(first, 64, slot, CheckpointKind::kTurnEnd);
  cache.insert(first, 128, std::nullopt, CheckpointKind::kTurnEnd);
  cache.release(first);
  const auto large = prompt({1, 2, 3}, 0);
  const Match beside = cache.match(large, "", std::nullopt);
  CHECK(beside.usable_tokens == 64);
  CHECK(beside.branch_tokens == 128);
  const AllocationId id = cache.allocate(large, "", {384, 1, std::nullopt}).value();
  const Match& alone = cache.allocation(id).match;
  CHECK(alone.usable_tokens == 0);
  CHECK_FALSE(alone.checkpoint_kind);
  CHECK_FALSE(alone.branch_tokens);
  CHECK_FALSE(alone.in_pages.checkpoint_kind);
  cache.release(id);
  cache.check_integrity();
}
