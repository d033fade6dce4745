"""Memory with a new owner: a working slot is forked or zeroed, a received one is left alone.

Failure 5 of hybrid caches: a stale slot read as a state. Here memory is filled with NaN whenever an
id is allocated.
"""

import time

import pytest

from tasuki.pycache.arena import run_copies
from tasuki.pycache.prefix_cache import HybridPrefixCache, monotonic_ms
from tests.harness.engines import PoisonedCache, tiny_parts
from tests.harness.trees import keep_value, slot_bytes, take_from, text


@pytest.fixture
def cache() -> HybridPrefixCache:
    return PoisonedCache(tiny_parts(arena_mib=0.2).arena)


def test_every_first_working_slot_is_zero_or_a_copy_whoever_had_it_before(
    cache: HybridPrefixCache,
) -> None:
    keep_value(cache, text(64, 7), 7.0)
    copies = zeros = 0
    for turn in range(30):
        seed = 7 if turn % 3 == 0 else 100 + turn
        allocation = take_from(cache, text(70, seed), slots=2)
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
    keep_value(cache, text(64, 7), 7.0)
    allocation = take_from(cache, text(70, 7))
    assert allocation.cow_source_slot is not None
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
