// One test an invariant of cache/prefix_cache.h from 7 on, by its number, and how tiers choose.
#include <doctest/doctest.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "core/errors.h"
#include "tests/cache_life.h"

using namespace tasuki::cache;

namespace {

CacheConfig tiered(std::int64_t slabs, std::vector<TierConfig> tiers, std::int32_t ranks = 1) {
  CacheConfig config = small_arena(slabs);
  config.tiers = std::move(tiers);
  config.ranks = ranks;
  return config;
}

CacheConfig with_host(std::int64_t slabs = 8, std::int32_t ranks = 1) {
  return tiered(slabs, {TierConfig{20}}, ranks);
}

// Write and acknowledge all waiting states.
std::int64_t write_all(PrefixCache& cache, bool is_good = true) {
  std::int64_t writes = 0;
  while (const auto write = cache.next_write()) {
    cache.acknowledge(write->id, is_good);
    cache.check_integrity();
    ++writes;
  }
  return writes;
}

AllocationTerms loading(const std::vector<Token>& tokens, double wait = 0) {
  AllocationTerms asked = terms(tokens);
  asked.load_wait = wait;
  return asked;
}

// Request all slabs, so only allocations' ids stay in the arena.
void crowd_out(PrefixCache& cache) {
  const std::int64_t most = cache.capacity_tokens(1);
  const auto stranger = prompt({99}, 0);
  const AllocationId id = cache.allocate(stranger, "x", {most, 1, std::nullopt}).value();
  cache.check_integrity();
  cache.release(id);
}

}  // namespace

TEST_CASE("invariant 7: a copy is of use after its last acknowledgement, if all were good") {
  for (const bool is_good : {true, false}) {
    PrefixCache cache = make_prefix_cache(with_host(8, 2));
    const auto tokens = prompt({1, 2, 3});
    serve(cache, tokens, 192);
    const TierWrite write = cache.next_write().value();
    CHECK(write.pages.size() == 3);
    cache.check_integrity();
    CHECK(cache.stats().tiers[0].slots.working == 1);
    cache.acknowledge(write.id, is_good);
    CHECK(cache.stats().tiers[0].slots.tree == 0);
    cache.acknowledge(write.id, true);
    cache.check_integrity();
    CHECK_THROWS_AS(cache.acknowledge(write.id, true), InvalidArgument);
    CHECK(cache.stats().tiers[0].slots.tree == (is_good ? 1 : 0));
    CHECK(cache.stats().tiers[0].failed_transfers == (is_good ? 0 : 1));
    crowd_out(cache);
    const Match match = cache.match(tokens, "", std::nullopt);
    CHECK(match.usable_tokens == 0);
    CHECK(match.stored.size() == (is_good ? 1 : 0));
    CHECK(match.miss_reasons.below == (is_good ? 192 : 0));
    CHECK(match.miss_reasons.sum() == match.prompt_tokens);
  }
}

TEST_CASE("invariant 7: what is loaded is the arena's after its last acknowledgement") {
  for (const bool is_good : {true, false}) {
    PrefixCache cache = make_prefix_cache(with_host());
    const auto tokens = prompt({1, 2, 3}, 20);
    serve(cache, tokens, 202);
    CHECK(write_all(cache) == 1);
    crowd_out(cache);
    const AllocationId id = cache.allocate(tokens, "", loading(tokens)).value();
    const PendingLoad load = cache.allocation(id).load.value();
    CHECK(load.plan.pages.size() == 4);
    CHECK(load.stored.boundary == 202);
    CHECK(load.plan.target == cache.allocation(id).working_slots.front());
    CHECK(cache.allocation(id).cached_tokens == 0);
    CHECK_THROWS_AS(cache.release(id), InvalidArgument);
    CHECK_THROWS_AS(cache.accept_received(id), InvalidArgument);
    CHECK(cache.match(tokens, "", std::nullopt).kv_tokens == 0);
    cache.check_integrity();
    cache.acknowledge(load.plan.id, is_good);
    cache.check_integrity();
    CHECK(!cache.allocation(id).load);
    CHECK(cache.allocation(id).cached_tokens == (is_good ? 202 : 0));
    CHECK(cache.allocation(id).match.usable_tokens == (is_good ? 202 : 0));
    CHECK(cache.allocation(id).match.miss_reasons.sum() ==
          static_cast<std::int64_t>(tokens.size()) - (is_good ? 202 : 0));
    CHECK(cache.match(tokens, "", std::nullopt).kv_tokens == (is_good ? 192 : 0));
    CHECK(cache.stats().usable_tokens == (is_good ? 202 : 0));
    CHECK((cache.allocation(id).state == AllocationState::kVoid) == !is_good);
    cache.release(id);
    cache.check_integrity();
    // No later request tries the failed load again.
    CHECK(cache.match(tokens, "", std::nullopt).stored.size() == (is_good ? 1 : 0));
  }
}

// Its KV is in the arena and its state is not: going on behind the KV without the state would give
// another answer.
TEST_CASE("a load that did not land leaves nothing to go on from") {
  PrefixCache cache = make_prefix_cache(with_host());
  const auto tokens = prompt({1, 2, 3, 4}, 20);
  serve(cache, tokens, 64);
  serve(cache, tokens, 256);
  CHECK(write_all(cache) == 2);
  // The first page's state is used again, so the last one's goes first.
  cache.release(cache.allocate(prompt({1}, 5), "", terms(prompt({1}, 5))).value());
  const std::int64_t free_slabs = cache.stats().slabs_free;
  const auto stranger = prompt({99}, 0);
  const AllocationId crowd =
      cache.allocate(stranger, "x", {64, free_slabs + 1, std::nullopt}).value();
  cache.release(crowd);
  const CacheStats before = cache.stats();
  const AllocationId id = cache.allocate(tokens, "", loading(tokens)).value();
  const PendingLoad load = cache.allocation(id).load.value();
  REQUIRE(cache.allocation(id).standing.depth == 256);
  REQUIRE(cache.allocation(id).match.usable_tokens == 64);
  cache.acknowledge(load.plan.id, false);
  cache.check_integrity();
  const Allocation& left = cache.allocation(id);
  CHECK(left.state == AllocationState::kVoid);
  CHECK(left.cached_tokens == 0);
  const SlotId slot = left.working_slots.front();
  const auto end = static_cast<std::int64_t>(tokens.size());
  CHECK_THROWS_AS(cache.insert(id, 256, slot, CheckpointKind::kTurnEnd), InvalidArgument);
  CHECK_THROWS_AS(cache.extend(id, end + 64), InvalidArgument);
  CHECK_THROWS_AS(cache.append(id, tokens), InvalidArgument);
  CHECK_THROWS_AS(cache.grant(id), InvalidArgument);
  CHECK(cache.stats().prompt_tokens == before.prompt_tokens);
  CHECK(cache.stats().allocated_requests == before.allocated_requests);
  cache.release(id);
  cache.check_integrity();
  // The next request begins at the last place with both in the arena.
  const AllocationId next = cache.allocate(tokens, "", loading(tokens)).value();
  CHECK(!cache.allocation(next).load);
  CHECK(cache.allocation(next).cached_tokens == 64);
  CHECK(cache.allocation(next).cow_source_slot.has_value());
  cache.release(next);
}

TEST_CASE("invariant 8: what the arena evicts and a tier has is no ghost and no event") {
  PrefixCache cache = make_prefix_cache(with_host());
  const WatchId watch = cache.journal().open(EventStream::kAll, 1000);
  cache.journal().drain(watch);
  const auto tokens = prompt({1, 2, 3}, 20);
  serve(cache, tokens, 202);
  CHECK(cache.journal().drain(watch).events.size() == 4);
  write_all(cache);
  crowd_out(cache);
  CHECK(cache.stats().pages.tree == 0);
  CHECK(cache.stats().ghost_nodes == 0);
  CHECK(cache.journal().drain(watch).events.empty());
  // A later watcher learns the same.
  const WatchId late = cache.journal().open(EventStream::kAll, 1000);
  CHECK(cache.journal().drain(late).events.size() == 4);
  const AllocationId id = cache.allocate(tokens, "", loading(tokens)).value();
  cache.acknowledge(cache.allocation(id).load->plan.id, true);
  cache.release(id);
  CHECK(cache.journal().drain(watch).events.empty());
  cache.check_integrity();
}

TEST_CASE("invariant 8: what the last tier drops is a ghost and an event, once") {
  PrefixCache cache = make_prefix_cache(tiered(8, {TierConfig{4}}));
  const WatchId watch = cache.journal().open(EventStream::kAll, 1000);
  cache.journal().drain(watch);
  const auto first = prompt({1, 2, 3});
  serve(cache, first, 192);
  write_all(cache);
  crowd_out(cache);
  cache.journal().drain(watch);
  serve(cache, prompt({4, 5, 6}), 192);
  serve(cache, prompt({7, 8, 9}), 192);
  cache.journal().drain(watch);
  write_all(cache);
  std::int64_t removed = 0;
  for (const CacheEvent& event : cache.journal().drain(watch).events) {
    const bool is_gone =
        event.kind == EventKind::kPageRemoved || event.kind == EventKind::kCheckpointRemoved;
    CHECK(is_gone);
    ++removed;
  }
  CHECK(removed == 4);
  const Match match = cache.match(first, "", std::nullopt);
  CHECK(match.stored.empty());
  CHECK(match.miss_reasons.kv_evicted == 192);
  CHECK(cache.stats().ghost_nodes > 0);
  cache.check_integrity();
}

TEST_CASE("invariant 9: a split divides copies, and leaves the state with the deeper part") {
  PrefixCache cache = make_prefix_cache(with_host(12));
  const auto first = prompt({1, 2, 3});
  serve(cache, first, 192);
  write_all(cache);
  serve(cache, prompt({1, 2, 4}), 192);
  cache.check_integrity();
  write_all(cache);
  CHECK(cache.stats().tiers[0].written_pages == 4);
  crowd_out(cache);
  // Below the arena too.
  serve(cache, prompt({1, 5}), 128);
  cache.check_integrity();
  CHECK(cache.match(first, "", std::nullopt).stored.front().boundary == 192);
  CHECK(cache.match(prompt({1, 2, 4}), "", std::nullopt).stored.front().pages[0] >= 2);
}

TEST_CASE("invariant 9: a split while a copy is written") {
  for (const bool is_good : {true, false}) {
    PrefixCache cache = make_prefix_cache(with_host(12));
    serve(cache, prompt({1, 2, 3}), 192);
    const TierWrite write = cache.next_write().value();
    serve(cache, prompt({1, 2, 4}), 192);
    cache.check_integrity();
    // Its path is still being written, so it waits.
    CHECK(!cache.next_write());
    cache.acknowledge(write.id, is_good);
    cache.check_integrity();
    CHECK(write_all(cache) == 1);
    CHECK(cache.stats().tiers[0].written_pages == (is_good ? 4 : 3));
  }
}

TEST_CASE("invariant 10: what a load reads stays, whatever the tier must make room for") {
  PrefixCache cache = make_prefix_cache(tiered(12, {TierConfig{4}}));
  const auto tokens = prompt({1, 2, 3});
  serve(cache, tokens, 192);
  write_all(cache);
  crowd_out(cache);
  const AllocationId id = cache.allocate(tokens, "", loading(tokens)).value();
  const TransferId load = cache.allocation(id).load->plan.id;
  for (Token page = 4; page < 12; ++page) serve(cache, prompt({page, page, page}), 192);
  write_all(cache);
  CHECK(cache.match(tokens, "", std::nullopt).stored.size() == 1);
  cache.flush();
  cache.check_integrity();
  CHECK(cache.match(tokens, "", std::nullopt).stored.size() == 1);
  // Given up: its ids are quarantined, and its source may go.
  const QuarantineId quarantine = cache.quarantine(id);
  cache.check_integrity();
  cache.flush();
  CHECK(cache.match(tokens, "", std::nullopt).stored.empty());
  cache.acknowledge(load, true);
  cache.free_quarantined(quarantine);
  cache.check_integrity();
}

TEST_CASE("invariant 11: no allocation waits for a write, and what it took is not of use") {
  PrefixCache cache = make_prefix_cache(with_host());
  const auto tokens = prompt({1, 2, 3}, 20);
  serve(cache, tokens, 202);
  const TierWrite write = cache.next_write().value();
  crowd_out(cache);
  cache.check_integrity();
  CHECK(cache.stats().tiers[0].abandoned_writes == 1);
  // Its ids have no other owner until the acknowledgement.
  CHECK(cache.stats().tiers[0].pages.working == 4);
  CHECK(cache.stats().tiers[0].slots.working == 1);
  cache.acknowledge(write.id, true);
  cache.check_integrity();
  CHECK(cache.stats().tiers[0].slabs_free == 20);
  CHECK(cache.match(tokens, "", std::nullopt).stored.empty());
}

TEST_CASE("a state is loaded where that is sooner than its prefill, and the cheapest one") {
  const auto tokens = prompt({1, 2, 3});
  const auto loads = [&](const TierConfig& tier, double wait) {
    PrefixCache cache = make_prefix_cache(tiered(8, {tier}));
    serve(cache, tokens, 192);
    write_all(cache);
    crowd_out(cache);
    const AllocationId id = cache.allocate(tokens, "", loading(tokens, wait)).value();
    return cache.allocation(id).load.has_value();
  };
  CHECK(loads({20, 10, 1, 20}, 0));
  CHECK(loads({20, 10, 1, 20}, 158));
  CHECK(!loads({20, 10, 1, 20}, 159));  // 192 tokens at 1 each
  CHECK(!loads({20, 200, 0, 0}, 0));
}

TEST_CASE("the arena gives up what a tier has before what it would compute again") {
  CacheConfig config = tiered(5, {TierConfig{20, 1, 0.1, 1}});
  config.policy = PolicyKind::kValue;
  PrefixCache cache = make_prefix_cache(config);
  const auto kept = prompt({4, 5, 6});
  serve(cache, prompt({1, 2, 3}), 192);
  write_all(cache);
  serve(cache, kept, 192);
  const AllocationId id = cache.allocate(prompt({7}), "", {192, 1, std::nullopt}).value();
  cache.release(id);
  CHECK(cache.match(kept, "", std::nullopt).usable_tokens == 192);
  CHECK(cache.match(prompt({1, 2, 3}), "", std::nullopt).stored.size() == 1);
}

TEST_CASE("the arena keeps what a smaller tier would drop sooner") {
  CacheConfig config = tiered(5, {TierConfig{4, 1, 0.1, 1}});
  config.policy = PolicyKind::kValue;
  PrefixCache cache = make_prefix_cache(config);
  const auto kept = prompt({1, 2, 3});
  serve(cache, kept, 192);
  write_all(cache);
  serve(cache, prompt({4}), 64);
  const AllocationId id = cache.allocate(prompt({7}), "", {192, 1, std::nullopt}).value();
  cache.release(id);
  CHECK(cache.match(kept, "", std::nullopt).usable_tokens == 192);
}

TEST_CASE("a host that is full passes on to the disk what is worth it") {
  PrefixCache cache = make_prefix_cache(tiered(12, {TierConfig{4}, TierConfig{40}}));
  const auto first = prompt({1, 2, 3});
  serve(cache, first, 192);
  write_all(cache);
  serve(cache, prompt({4, 5, 6}), 192);
  serve(cache, prompt({7, 8, 9}), 192);
  write_all(cache);
  CHECK(cache.stats().tiers[1].written_slots >= 1);
  crowd_out(cache);
  const Match match = cache.match(first, "", std::nullopt);
  REQUIRE(match.stored.size() == 1);
  CHECK(raw(match.stored.front().tier) == 1);
  const AllocationId id = cache.allocate(first, "", loading(first)).value();
  cache.acknowledge(cache.allocation(id).load->plan.id, true);
  CHECK(cache.allocation(id).cached_tokens == 192);
  CHECK(cache.stats().tiers[1].loaded_slots == 1);
  cache.release(id);
  cache.check_integrity();
}

TEST_CASE("a disk without budget is not written") {
  PrefixCache cache = make_prefix_cache(tiered(12, {TierConfig{4}, TierConfig{40, 0, 0, 0, 0.0}}));
  for (Token page = 1; page < 9; ++page) serve(cache, prompt({page, page, page}), 192);
  write_all(cache);
  CHECK(cache.stats().tiers[1].written_slots == 0);
  CHECK(cache.stats().tiers[1].refused_writes > 0);
}

namespace {

CacheConfig kept(std::int64_t slabs = 8) {
  TierConfig disk{20};
  disk.filling = Filling::kAhead;
  return tiered(slabs, {TierConfig{20}, disk});
}

}  // namespace

TEST_CASE("a tier that is filled ahead gets what the one above keeps") {
  PrefixCache cache = make_prefix_cache(kept());
  serve(cache, prompt({1, 2, 3}, 20), 202);
  CHECK(write_all(cache) == 2);
  CHECK(cache.stats().tiers[0].slots.tree == 1);
  CHECK(cache.stats().tiers[1].slots.tree == 1);
  CHECK(cache.stats().tiers[1].pages.tree == 4);
  // And once.
  CHECK(!cache.next_write());
  cache.flush();
  cache.check_integrity();
  CHECK(cache.stats().tiers[1].slots.tree == 0);
}

TEST_CASE("a budget lets one of a short answer's two ends be written, and what is used later") {
  CacheConfig config = kept(12);
  config.policy = PolicyKind::kValue;
  config.tiers[1].pages_a_second = 100;
  PrefixCache cache = make_prefix_cache(config);
  const auto tokens = prompt({1, 2, 3});
  const AllocationId id = cache.allocate(tokens, "", terms(tokens, 2)).value();
  const std::vector<SlotId> slots = cache.allocation(id).working_slots;
  cache.insert(id, 192, slots[0], CheckpointKind::kPromptEnd);
  cache.insert(id, 193, slots[1], CheckpointKind::kTurnEnd);
  cache.release(id);
  write_all(cache);
  CHECK(cache.stats().tiers[0].written_slots == 2);
  CHECK(cache.stats().tiers[1].written_slots == 1);

  // A page is worth less than a slot, until a request returns for it.
  const auto brief = prompt({7});
  serve(cache, brief, 64);
  write_all(cache);
  CHECK(cache.stats().tiers[1].written_slots == 1);
  cache.release(cache.allocate(brief, "", terms(brief)).value());
  write_all(cache);
  CHECK(cache.stats().tiers[1].written_slots == 2);
  CHECK(cache.stats().tiers[1].budget_pages.value() < 6000);
}

TEST_CASE("what was labelled stands again in a cache that begins, and nothing twice") {
  PrefixCache before = make_prefix_cache(kept());
  const auto first = prompt({1, 2, 3}, 20);
  auto second = prompt({1, 2, 7, 8}, 0);
  serve(before, first, 202);
  serve(before, second, 256);
  struct Written {
    WriteLabel label;
    TierWrite write;
  };
  std::vector<Written> written;
  while (const auto write = before.next_write()) {
    if (raw(write->to) == 1) written.push_back({before.label_of(write->id), *write});
    before.acknowledge(write->id, true);
  }
  REQUIRE(written.size() == 2);
  CHECK(written[0].label.start == 0);
  CHECK(!written[0].label.above);
  CHECK(written[1].label.start == 128);
  CHECK(written[1].label.above == written[0].write.pages[1].second);
  CHECK_THROWS_AS(before.label_of(written[0].write.id), InvalidArgument);

  PrefixCache after = make_prefix_cache(kept());
  KeptState one{
      "", Tokens(first).first(202), {}, written[0].write.slot.second, written[0].label.kind};
  for (const auto& [from, to] : written[0].write.pages) one.pages.push_back(to);
  KeptState other{"",
                  second,
                  {one.pages[0], one.pages[1]},
                  written[1].write.slot.second,
                  written[1].label.kind};
  for (const auto& [from, to] : written[1].write.pages) other.pages.push_back(to);
  for (const KeptState& state : {one, other}) {
    CHECK(after.restore(static_cast<TierId>(1), state));
    after.check_integrity();
    CHECK(!after.restore(static_cast<TierId>(1), state));
    after.check_integrity();
  }
  CHECK(after.stats().tiers[1].pages.tree == 6);
  CHECK(after.stats().tiers[1].slots.tree == 2);
  // Its slot is another's, and so is a page of the third.
  KeptState third{"salt", one.tokens, one.pages, one.slot, one.kind};
  CHECK(!after.restore(static_cast<TierId>(1), third));
  third.pages.pop_back();
  CHECK_THROWS_AS(after.restore(static_cast<TierId>(1), third), InvalidArgument);
  after.check_integrity();
  CHECK(!after.match(first, "salt", std::nullopt).stored.size());

  const AllocationId id = after.allocate(first, "", loading(first)).value();
  const PendingLoad load = after.allocation(id).load.value();
  CHECK(load.stored.boundary == 202);
  CHECK(load.plan.pages.front().source == one.pages.front());
  after.acknowledge(load.plan.id, true);
  after.check_integrity();
  CHECK(after.allocation(id).cached_tokens == 202);
  after.release(id);
  CHECK_THROWS_AS(after.restore(static_cast<TierId>(1), one), InvalidArgument);
}

TEST_CASE("what somebody else wrote to a tier is of use here, once, and takes ids of its own") {
  PrefixCache cache = make_prefix_cache(kept());
  const auto first = prompt({1, 2, 3}, 20);
  const auto second = prompt({1, 2, 7, 8}, 0);
  const auto remote = static_cast<TierId>(1);
  // A path unknown to this node, then one branching off it.
  const auto adopted = cache.adopt(remote, "", Tokens(first).first(202), CheckpointKind::kTurnEnd);
  REQUIRE(adopted);
  cache.check_integrity();
  CHECK(adopted->pages.size() == 4);
  CHECK(adopted->first_new == 0);
  CHECK(!cache.adopt(remote, "", Tokens(first).first(202), CheckpointKind::kTurnEnd));
  const auto other = cache.adopt(remote, "", second, CheckpointKind::kTurnEnd);
  REQUIRE(other);
  cache.check_integrity();
  CHECK(other->first_new == 2);
  CHECK(other->pages[1] == adopted->pages[1]);
  CHECK(cache.stats().tiers[1].pages.tree == 6);

  const AllocationId id = cache.allocate(first, "", loading(first)).value();
  const PendingLoad load = cache.allocation(id).load.value();
  CHECK(load.plan.state_from == remote);
  CHECK(load.plan.source == adopted->slot);
  CHECK(load.plan.pages.back().source == adopted->pages.back());
  cache.acknowledge(load.plan.id, true);
  cache.check_integrity();
  CHECK(cache.allocation(id).cached_tokens == 202);
  cache.release(id);
  CHECK_THROWS_AS(cache.adopt(remote, "", {}, CheckpointKind::kTurnEnd), InvalidArgument);
  CHECK_THROWS_AS(cache.adopt(static_cast<TierId>(2), "", first, CheckpointKind::kTurnEnd),
                  InvalidArgument);
}

TEST_CASE("a tier is given what the tree remembers as gone, and the rest of a path that stands") {
  PrefixCache cache = make_prefix_cache(tiered(8, {TierConfig{20}}));
  const auto tokens = prompt({1, 2, 3}, 20);
  serve(cache, tokens, 202);
  // Nothing was written: the arena forgets it.
  crowd_out(cache);
  CHECK(cache.match(tokens, "", std::nullopt).stored.empty());
  CHECK(cache.stats().ghost_nodes > 0);
  const auto longer = prompt({1, 2, 3, 4}, 0);
  for (const Tokens state : {Tokens(tokens).first(202), Tokens(longer)}) {
    REQUIRE(cache.adopt(TierId{}, "", state, CheckpointKind::kTurnEnd));
    cache.check_integrity();
  }
  const Match match = cache.match(tokens, "", std::nullopt);
  REQUIRE(match.stored.size() == 1);
  CHECK(match.stored.front().boundary == 202);
  CHECK(cache.stats().ghost_nodes == 0);
  // More than it could hold.
  const auto endless = prompt({5}, 64 * 2000);
  CHECK(!cache.adopt(TierId{}, "", endless, CheckpointKind::kTurnEnd));
  cache.check_integrity();
}

TEST_CASE("what is given to a full tier displaces, and never what it builds on") {
  PrefixCache cache = make_prefix_cache(tiered(8, {TierConfig{5}}));
  for (Token turn = 1; turn < 60; ++turn) {
    const auto tokens = prompt({1, 2, static_cast<Token>(turn + 10)}, static_cast<int>(turn) % 3);
    cache.adopt(TierId{}, turn % 4 == 0 ? "salt" : "", tokens, CheckpointKind::kTurnEnd);
    cache.check_integrity();
  }
  CHECK(cache.stats().tiers[0].slots.tree > 0);
  CHECK(cache.stats().tiers[0].dropped_slots > 0);
}
