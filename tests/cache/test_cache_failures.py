"""Failure modes that other hybrid caches were bitten by, one case each, on the tree alone."""

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray
from tasuki.pycache._cpp_cache import Allocation, CheckpointKind, PrefixCache, TreeConfig

Tokens = NDArray[np.int32]
END = CheckpointKind.TURN_END


def make_tree(slabs: int = 16) -> PrefixCache:
    return PrefixCache(TreeConfig(slabs=slabs, blocks_per_slab=8, pages_per_slab=3))


def text(length: int, seed: int = 0) -> Tokens:
    return np.random.default_rng(seed).integers(0, 1000, length, dtype=np.int32)


def take(tree: PrefixCache, tokens: Tokens, slots: int = 1, salt: bytes = b"") -> Allocation:
    allocation = tree.allocate(tokens, salt=salt, capacity_tokens=len(tokens), working_slots=slots)
    assert allocation is not None
    return allocation


def keep(tree: PrefixCache, tokens: Tokens, boundary: int | None = None, salt: bytes = b"") -> None:
    allocation = take(tree, tokens, salt=salt)
    tree.insert(allocation, boundary or len(tokens), allocation.working_slots[0], END)
    tree.release(allocation)


def pinned(tree: PrefixCache) -> tuple[int, int]:
    stats = tree.stats()
    return stats.pages.pinned, stats.slots.pinned


def test_slot_exhausted_at_each_allocation_point_waits_and_leaks_nothing() -> None:
    tree = make_tree(slabs=4)
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
    tree = make_tree()
    keep(tree, text(200))
    before = tree.stats().slabs_free
    for _ in range(50):
        allocation = take(tree, np.concatenate([text(200), text(30, 1)]))
        assert allocation.cached_tokens == 200
        tree.release(allocation)
        tree.check_integrity()
    assert tree.stats().slabs_free == before and pinned(tree) == (0, 0)


def test_a_locked_page_outlives_its_evicted_state_and_a_locked_state_its_neighbours() -> None:
    tree = make_tree(slabs=8)
    keep(tree, text(192))
    receiver = tree.allocate_to_receive(text(200), capacity_tokens=256, working_slots=1)
    assert receiver is not None and receiver.shared_pages == 3
    filler = tree.allocate(text(1, 9), capacity_tokens=1, working_slots=5)
    assert filler is not None, "the state must give way, the pages under the receiver must not"
    assert tree.stats().checkpoints == 0
    assert tree.match(text(200)).kv_tokens == 192
    tree.check_integrity()
    tree.release(filler)
    tree.release(receiver)
    tree.check_integrity()


@pytest.mark.parametrize("cut", [64, 128, 192])
def test_a_split_neither_moves_nor_duplicates_a_state(cut: int) -> None:
    tree = make_tree()
    whole = text(256)
    keep(tree, whole)
    keep(tree, np.concatenate([whole[:cut], text(64, 7)]))
    assert tree.stats().checkpoints == 2
    assert tree.match(np.append(whole, 1).astype(np.int32)).usable_tokens == 256
    tree.check_integrity()


def test_publishing_an_existing_state_frees_exactly_the_duplicate() -> None:
    tree = make_tree()
    first, second = take(tree, text(128)), take(tree, text(128))
    for allocation in (first, second):
        tree.insert(allocation, 128, allocation.working_slots[0], END)
        tree.release(allocation)
        tree.check_integrity()
    assert (tree.stats().checkpoints, tree.stats().slots.tree) == (1, 1)
    assert tree.stats().pages.tree == 2


def test_a_published_slot_is_never_a_later_destination() -> None:
    tree = make_tree()
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
    tree = make_tree()
    boundary = (length - 1) // 64 * 64 or length
    keep(tree, text(length), boundary)
    expected = boundary if boundary < length else 0
    assert tree.match(text(length)).usable_tokens == expected
    longer = np.append(text(length), 5).astype(np.int32)
    assert tree.match(longer).usable_tokens == boundary


def test_under_pressure_the_hot_conversation_keeps_its_state() -> None:
    tree = make_tree(slabs=12)
    hot = text(192, 99)
    keep(tree, hot)
    for cold in range(40):
        keep(tree, text(192, cold))
        allocation = take(tree, np.append(hot, cold).astype(np.int32))
        assert allocation.cached_tokens == 192, f"lost after {cold} cold conversations"
        tree.release(allocation)
    tree.check_integrity()


def test_a_request_near_the_pool_size_progresses_over_a_full_cache() -> None:
    tree = make_tree(slabs=10)
    for seed in range(12):
        keep(tree, text(150, seed))
    keep(tree, text(tree.capacity_tokens(1), 50))
    tree.check_integrity()


def test_namespaces_never_cross_even_in_causes() -> None:
    tree = make_tree(slabs=32)
    salts = (b"", b"a", b"b", b"a\0", b"\xff")
    for mine, theirs in itertools.permutations(salts, 2):
        tree.flush()
        keep(tree, text(200), salt=mine)
        other = tree.match(text(201), theirs)
        assert (other.kv_tokens, other.usable_tokens, other.miss_reasons.new) == (0, 0, 201)


def test_two_instances_fed_the_same_calls_choose_the_same_ids_and_victims() -> None:
    told = []
    for _ in range(2):
        tree, ids = make_tree(slabs=10), []
        for step in range(120):
            allocation = take(tree, text(100 + step % 7 * 40, step % 11))
            ids.append(
                (allocation.pages.tolist(), allocation.working_slots, allocation.cached_tokens)
            )
            tree.insert(allocation, allocation.tokens, allocation.working_slots[0], END)
            tree.release(allocation)
        told.append(ids)
    assert told[0] == told[1]


def test_a_blocked_request_is_told_when_to_try_again_and_not_before() -> None:
    tree = make_tree(slabs=6)
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
    tree = make_tree(slabs=6)
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
    tree = make_tree(slabs=6)
    for seed in range(60):
        keep(tree, np.concatenate([text(64), text(128, seed)]), 64 + 64 * (seed % 3))
        tree.check_integrity()
    assert tree.stats().evicted_pages > 40
    tree.flush()
    tree.check_integrity()
    assert tree.stats().slabs_free == 6


def test_a_request_too_large_for_the_shadows_of_auto_is_still_released() -> None:
    tree = PrefixCache(TreeConfig(slabs=4, blocks_per_slab=8, pages_per_slab=3, policy="auto"))
    allocation = take(tree, text(64 * 9), slots=0)
    tree.insert(allocation, 64 * 9, tree.take_checkpoint_slot(allocation), END)
    tree.append(allocation, text(100, 1))
    tree.release(allocation)
    tree.check_integrity()
    assert tree.stats().allocations == 0 and tree.stats().checkpoints == 1
