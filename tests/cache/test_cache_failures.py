"""Failure modes known from other hybrid caches, one case each, on the tree alone."""

import itertools

import numpy as np
import pytest

from tasuki.pycache._cpp_cache import PrefixCache
from tests.harness.trees import END, joined, keep, take, take_receive, text, tree_of, usable


def pinned(tree: PrefixCache) -> tuple[int, int]:
    stats = tree.stats()
    return stats.pages.pinned, stats.slots.pinned


def test_slot_exhausted_at_each_allocation_point_waits_and_leaks_nothing() -> None:
    tree = tree_of(slabs=4)
    held = take(tree, text(64), slots=2)
    version = tree.room_version
    assert tree.allocate(text(64, 1), capacity_tokens=64, working_slots=2) is None
    assert tree.take_checkpoint_slot(held) is not None
    assert tree.take_checkpoint_slot(held) is None
    assert tree.extend(held, 64 * 4) is False
    assert tree.room_version == version, "nothing that a refused request waits for has happened"
    tree.check_integrity()
    tree.release(held)
    assert tree.stats().slabs_free == 4 and pinned(tree) == (0, 0)


def test_a_match_that_is_then_aborted_returns_its_slot_and_locks() -> None:
    tree = tree_of()
    keep(tree, text(200))
    before = tree.stats().slabs_free
    for _ in range(50):
        allocation = take(tree, joined(text(200), text(30, 1)))
        assert allocation.cached_tokens == 200
        tree.release(allocation)
        tree.check_integrity()
    assert tree.stats().slabs_free == before and pinned(tree) == (0, 0)


def test_a_locked_page_outlives_its_evicted_state_and_a_locked_state_its_neighbours() -> None:
    tree = tree_of(slabs=8)
    keep(tree, text(192))
    receiver = take_receive(tree, text(200), capacity=256)
    assert receiver.shared_pages == 3
    # The state must give way, the pages under the receiver must not.
    filler = take(tree, text(1, 9), slots=5)
    assert tree.stats().checkpoints == 0
    assert tree.match(text(200)).kv_tokens == 192
    tree.check_integrity()
    tree.release(filler)
    tree.release(receiver)
    tree.check_integrity()


@pytest.mark.parametrize("cut", [64, 128, 192])
def test_a_split_neither_moves_nor_duplicates_a_state(cut: int) -> None:
    tree, whole = tree_of(), text(256)
    branch = joined(whole[:cut], text(64, 7))
    keep(tree, whole)
    keep(tree, branch)
    assert (tree.stats().checkpoints, tree.stats().nodes) == (2, 3)
    assert (usable(tree, whole), usable(tree, branch)) == (256, cut + 64)
    third = tree.match(joined(whole[:cut], text(128, 2)))
    assert (third.usable_tokens, third.branch_tokens) == (0, cut)
    assert third.miss_reasons.never_checkpointed == cut
    tree.check_integrity()


def test_publishing_an_existing_state_frees_exactly_the_duplicate() -> None:
    tree = tree_of()
    allocations = [take(tree, text(192)), take(tree, text(192))]
    pages = [allocation.pages.tolist() for allocation in allocations]
    for allocation in allocations:
        tree.insert(allocation, 192, allocation.working_slots[0], END)
        tree.check_integrity()
    assert [allocation.pages.tolist() for allocation in allocations] == pages
    assert [allocation.shared_pages for allocation in allocations] == [3, 0]
    stats = tree.stats()
    assert (stats.pages.tree, stats.pages.working) == (3, 3)
    assert (stats.checkpoints, stats.slots.tree, stats.slots.working) == (1, 1, 0)
    for allocation in allocations:
        tree.release(allocation)
        tree.check_integrity()
    assert (tree.stats().pages.tree, tree.stats().pages.working) == (3, 0)


def test_a_published_slot_is_never_a_later_destination() -> None:
    tree = tree_of()
    allocation = take(tree, text(256))
    published = set()
    for end in (64, 128, 192):
        slot = tree.take_checkpoint_slot(allocation)
        assert slot is not None and slot not in published | set(allocation.working_slots)
        tree.insert(allocation, end, slot, END)
        published.add(slot)
    tree.release(allocation)


@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 127, 128, 129, 640, 641, 700])
def test_an_exact_repeat_hits_whatever_its_length(length: int) -> None:
    tree = tree_of()
    boundary = (length - 1) // 64 * 64 or length
    keep(tree, text(length), boundary)
    assert tree.match(text(length)).usable_tokens == (boundary if boundary < length else 0)
    assert usable(tree, text(length)) == boundary


def test_under_pressure_the_hot_conversation_keeps_its_state() -> None:
    tree, hot = tree_of(slabs=12), text(192, 99)
    keep(tree, hot)
    for cold in range(40):
        keep(tree, text(192, cold))
        allocation = take(tree, joined(hot, cold))
        assert allocation.cached_tokens == 192, f"lost after {cold} cold conversations"
        tree.release(allocation)
    tree.check_integrity()


def test_namespaces_never_cross_even_in_causes() -> None:
    tree = tree_of(slabs=32)
    salts = (b"", b"a", b"b", b"a\0", b"\xff")
    for mine, theirs in itertools.permutations(salts, 2):
        tree.flush()
        keep(tree, text(200), salt=mine)
        other = tree.match(text(201), theirs)
        assert (other.kv_tokens, other.usable_tokens, other.miss_reasons.new) == (0, 0, 201)


@pytest.mark.parametrize("policy", ["lru", "value", "auto"])
def test_two_instances_fed_the_same_calls_choose_the_same_ids_and_victims(policy: str) -> None:
    """A watch on one of them makes no difference."""
    lives = []
    for watching in (False, False, True):
        tree, ids = tree_of(slabs=10, policy=policy, attention_cost=1e-3), []
        generator = np.random.default_rng(3)
        if watching:
            tree.watch("all")
        for step in range(300):
            tree.advance_to(step * 900)
            seed, longer = generator.integers(0, (6, 7)).tolist()
            allocation = take(tree, text(100 + 40 * longer, seed))
            ids.append(
                (allocation.pages.tolist(), allocation.working_slots, allocation.cached_tokens)
            )
            tree.insert(allocation, allocation.tokens, allocation.working_slots[0], END)
            tree.release(allocation)
        stats = tree.stats()
        lives.append((ids, stats.evicted_pages, stats.evicted_checkpoints))
    assert lives[0] == lives[1] == lives[2]
    assert lives[0][1] > 100 and sum(cached for _, _, cached in lives[0][0]) > 0


def test_a_blocked_request_is_told_when_to_try_again_and_not_before() -> None:
    tree = tree_of(slabs=6)
    running = take(tree, text(64 * 9))
    assert tree.allocate(text(64 * 9, 1), capacity_tokens=64 * 9, working_slots=1) is None
    version = tree.room_version
    for token in range(32):
        tree.append(running, np.array([token], np.int32))
        assert tree.match(text(10)).usable_tokens == 0
        assert tree.room_version == version
    tree.release(running)
    assert tree.room_version != version
    take(tree, text(64 * 9, 1))


def test_counters_are_not_inflated_by_matches_and_refused_retries() -> None:
    tree = tree_of(slabs=6)
    running = take(tree, text(64 * 9))
    before = tree.stats()
    for _ in range(10):
        tree.match(text(300, 1))
        assert tree.allocate(text(64 * 9, 1), capacity_tokens=64 * 9, working_slots=1) is None
    after = tree.stats()
    assert (after.allocated_requests, after.prompt_tokens) == (1, 576)
    assert after.lost.as_dict() == before.lost.as_dict()
    tree.release(running)


def test_a_pruned_branch_leaves_no_candidate_behind() -> None:
    tree = tree_of(slabs=6)
    for seed in range(60):
        keep(tree, joined(text(64), text(128, seed)), 64 + 64 * (seed % 3))
    assert tree.stats().evicted_pages > 40
    tree.flush()
    tree.check_integrity()
    assert tree.stats().slabs_free == 6


def test_a_request_too_large_for_the_shadows_of_auto_is_still_released() -> None:
    tree = tree_of(slabs=4, policy="auto")
    allocation = take(tree, text(64 * 9), slots=0)
    tree.insert(allocation, 64 * 9, tree.take_checkpoint_slot(allocation), END)
    tree.append(allocation, text(100, 1))
    tree.release(allocation)
    tree.check_integrity()
    assert tree.stats().allocations == 0 and tree.stats().checkpoints == 1
