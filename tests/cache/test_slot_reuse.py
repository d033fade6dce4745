"""Memory that changes its owner: a working slot is forked or zeroed, a received one is left alone.

Failure 5 of hybrid caches: a stale slot read as a state. Memory is poisoned with NaN here whenever
an id is handed out."""

import time

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tasuki.pycache._cpp_cache import CheckpointKind
from tasuki.pycache.copies import CopyKind, CopyOp, run_copies
from tasuki.pycache.prefix_cache import HybridPrefixCache, monotonic_ms

from tests.harness.engines import poison, tiny_parts

Tokens = NDArray[np.int32]


def text(length: int, seed: int = 0) -> Tokens:
    return np.random.default_rng(seed).integers(0, 128, length, dtype=np.int32)


def slot_bytes(cache: HybridPrefixCache, slot: int) -> torch.Tensor:
    layout = cache.arena.layout
    start = slot * layout.slab_bytes
    return cache.arena.bytes[start : start + layout.slot_bytes].view(torch.float32)


@pytest.fixture
def cache() -> HybridPrefixCache:
    return HybridPrefixCache(tiny_parts(arena_mib=0.2).arena, poison)


def keep(cache: HybridPrefixCache, tokens: Tokens, value: float) -> None:
    allocation = cache.allocate(
        tokens,
        salt=b"",
        capacity_tokens=len(tokens),
        working_slots=1,
        cursor=None,
    )
    assert allocation is not None
    run_copies(cache.arena, cache.take_copies())
    slot_bytes(cache, allocation.working_slots[0]).fill_(value)
    cache.insert(allocation, len(tokens), allocation.working_slots[0], CheckpointKind.TURN_END)
    cache.release(allocation)


def test_every_first_working_slot_is_zero_or_a_copy_whoever_had_it_before(
    cache: HybridPrefixCache,
) -> None:
    keep(cache, text(64, 7), 7.0)
    copies = zeros = 0
    for turn in range(30):
        seed = 7 if turn % 3 == 0 else 100 + turn
        allocation = cache.allocate(
            text(70, seed),
            salt=b"",
            capacity_tokens=70,
            working_slots=2,
            cursor=None,
        )
        assert allocation is not None
        run_copies(cache.arena, cache.take_copies())
        expected = 7.0 if allocation.cached_tokens == 64 else 0.0
        held = slot_bytes(cache, allocation.working_slots[0])
        assert bool((held == expected).all()), f"a stale state in turn {turn}"
        copies += allocation.cached_tokens == 64
        zeros += allocation.cached_tokens == 0
        held.fill_(float(100 + turn))
        cache.release(allocation)
    assert copies == 10 and zeros == 20


def test_a_fork_leaves_its_source_as_it_was(cache: HybridPrefixCache) -> None:
    keep(cache, text(64, 7), 7.0)
    allocation = cache.allocate(
        text(70, 7),
        salt=b"",
        capacity_tokens=70,
        working_slots=1,
        cursor=None,
    )
    assert allocation is not None and allocation.cow_source_slot is not None
    run_copies(cache.arena, cache.take_copies())
    assert allocation.cow_source_slot not in allocation.working_slots
    slot_bytes(cache, allocation.working_slots[0]).fill_(1.0)
    assert bool((slot_bytes(cache, allocation.cow_source_slot) == 7.0).all())
    cache.release(allocation)


def test_settling_does_not_wipe_the_state_that_was_transferred(cache: HybridPrefixCache) -> None:
    allocation = cache.allocate_to_receive(
        text(100), salt=b"", capacity_tokens=128, working_slots=1, cursor=None
    )
    assert allocation is not None
    received = slot_bytes(cache, allocation.working_slots[0])
    assert bool(received.isnan().all()), "it is the sender's to write"
    received.fill_(3.0)
    cache.accept_received(allocation)
    assert cache.extend(allocation, 200)
    assert bool((slot_bytes(cache, allocation.working_slots[0]) == 3.0).all())
    cache.release(allocation)


def test_what_a_waiting_copy_still_reads_is_not_fresh(cache: HybridPrefixCache) -> None:
    blocks = cache.arena.layout.blocks_per_slab
    fresh: list[tuple[list[int], list[int]]] = []
    cache._on_fresh = lambda arena, pages, slots: fresh.append((list(pages), list(slots)))
    # Slab 3 is forked from, and a page of slab 4 moves; what they are written to is fresh.
    cache._copies = [
        CopyOp(CopyKind.SLOT, 3, 5),
        CopyOp(CopyKind.PAGE, 4 * blocks, 6 * blocks),
        CopyOp(CopyKind.ZERO_SLOT, 7, 7),
    ]
    pages = np.array([3 * blocks, 4 * blocks, 4 * blocks + 1, 6 * blocks], dtype=np.int32)
    cache._hand_out(pages, [3, 4, 5, 7])
    assert fresh == [([4 * blocks + 1, 6 * blocks], [5, 7])]


def test_what_does_not_fit_is_refused_and_leaves_no_copies(cache: HybridPrefixCache) -> None:
    most = cache.capacity_tokens(1)
    held = cache.allocate(text(10), salt=b"", capacity_tokens=most, working_slots=1, cursor=None)
    assert held is not None
    cache.take_copies()
    for allocate in (cache.allocate, cache.allocate_to_receive):
        refused = allocate(
            text(10, 1), salt=b"", capacity_tokens=most, working_slots=1, cursor=None
        )
        assert refused is None
    assert cache.take_checkpoint_slot(held) is None
    assert cache.take_copies() == ()
    cache.release(held)


def test_the_caches_clock_is_monotonic_milliseconds() -> None:
    before = time.monotonic_ns()
    assert before // 10**6 <= monotonic_ms() <= time.monotonic_ns() // 10**6
