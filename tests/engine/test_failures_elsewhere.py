"""Failures known from other engines' tiers (docs/faults.md#memory-below-the-arena), unless the test
of a part covers them."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from scripts.chaos.tier_turns import LAYOUT
from tasuki.engine.tiers.copy_job import CopyJob, JobEnd
from tasuki.engine.tiers.digests import TierDigests
from tasuki.engine.tiers.lower_tiers import LowerTiers
from tasuki.engine.tiers.store import within
from tasuki.engine.tiers.tier import LowerTier, TierPrices
from tasuki.pycache._cpp_cache import CheckpointKind
from tasuki.pycache.arena import Arena
from tasuki.pycache.layout import PAGE_TOKENS
from tasuki.pycache.prefix_cache import HybridPrefixCache
from tests.harness.engines import prompt, submit
from tests.harness.tiers import TieredEngine
from tests.harness.waiting import HANG_SECONDS

PRICES = TierPrices(1.0, 0.1, 0.1, 1e-6)


def cache_over(slabs: int, *below: int) -> HybridPrefixCache:
    return HybridPrefixCache(
        Arena(LAYOUT, slabs), policy="value", tiers=[PRICES.config(size) for size in below]
    )


def keep(cache: HybridPrefixCache, tokens: list[int]) -> bool:
    """Keep the state after these tokens, if there is memory; return whether it was kept."""
    asked = np.asarray(tokens, np.int32)
    allocation = cache.allocate(asked, capacity_tokens=len(asked), working_slots=2)
    if allocation is None:
        return False
    slot = allocation.working_slots[1]
    cache.insert(allocation, len(asked), slot, CheckpointKind.TURN_END)
    cache.release(allocation)
    return True


def write_all(cache: HybridPrefixCache) -> None:
    while (write := cache.next_write()) is not None:
        cache.acknowledge(write.id, True)


class Waiting:
    """A copier that records its jobs."""

    def __init__(self) -> None:
        self.written = TierDigests()
        self.begun: list[CopyJob] = []

    def begin(self, job: CopyJob) -> None:
        self.begun.append(job)

    def empty(self) -> None:
        return

    def cancel(self, transfer: int) -> None:
        return

    def take_ended(self) -> list[tuple[int, JobEnd]]:
        return []

    def wait(self, seconds: float) -> None:
        return

    def close(self, seconds: float) -> bool:
        return True


class Launches:
    """Launches that end when a test says so."""

    def __init__(self) -> None:
        self.has_ended = False

    def record_event(self) -> Callable[[], bool]:
        return lambda: self.has_ended


def test_a_page_is_not_read_before_it_was_written_nor_written_while_it_is_read() -> None:
    """Failure 3: pages were stored while a kernel still wrote them, and loaded over pages still
    read."""
    cache, copier, launches = cache_over(8, 20), Waiting(), Launches()
    tiers = LowerTiers(cache, launches, [LowerTier("host", copier, PRICES)])
    assert keep(cache, prompt(200, seed=1))
    tiers.write_down()
    tiers.advance()
    assert copier.begun == [] and tiers.is_busy
    launches.has_ended = True
    tiers.advance()
    (write,) = copier.begun
    cache.acknowledge(write.transfer, True)
    while cache.match(np.asarray(prompt(200, seed=1), np.int32)).kv_tokens:
        keep(cache, prompt(5 * PAGE_TOKENS, seed=int(cache.stats().evicted_pages) + 2))
    asked = np.asarray([*prompt(200, seed=1), 1, 2], np.int32)
    allocation = cache.allocate_or_load(asked, capacity_tokens=202, working_slots=2)
    assert allocation is not None and allocation.load is not None
    launches.has_ended = False
    tiers.load(allocation, lambda end: None)
    tiers.advance()
    assert len(copier.begun) == 1
    launches.has_ended = True
    tiers.advance()
    assert len(copier.begun) == 2


@pytest.mark.parametrize("length", [PAGE_TOKENS, 4 * PAGE_TOKENS])
def test_a_tier_is_full_before_it_drops_whatever_it_holds(length: int) -> None:
    """Failure 6: a host pool split as the device's, states lost while a third of it was free."""
    cache = cache_over(12, 30)
    for seed in range(200):
        assert keep(cache, prompt(length, seed))
        write_all(cache)
        host = cache.stats().tiers[0]
        if host.dropped_slots:
            break
        free_before = host.slabs_free
    assert free_before <= 1 + length // PAGE_TOKENS // LAYOUT.pages_per_slab, free_before
    cache.check_integrity()


def test_names_are_the_same_in_every_process() -> None:
    """Failure 10: a hash seed for each process, and no reuse after a restart."""
    program = (
        "import numpy as np; from tasuki.engine.tiers.remote.remote_objects import name_of; "
        "print(name_of(b'salt', np.arange(300, dtype=np.int32)))"
    )
    names = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(names) == 1 and names.pop().startswith("at/")


def test_what_comes_from_far_below_displaces_nothing_above() -> None:
    """Failure 11: the second level evicted entries to make space for loads from the third."""
    cache = cache_over(8, 10, 40)
    for seed in range(6):
        assert keep(cache, prompt(300, seed))
        write_all(cache)
    before = cache.stats().tiers[0]
    for seed in range(100, 104):
        found = cache.adopt(
            1,
            np.asarray(prompt(300, seed), np.int32),
            salt=b"",
            kind=CheckpointKind.TURN_END,
        )
        assert found is not None
    after = cache.stats()
    assert after.tiers[0].pages.tree == before.pages.tree
    assert after.tiers[0].dropped_slots == before.dropped_slots
    cache.check_integrity()


def test_a_load_without_room_is_none_and_counts_for_nothing() -> None:
    """Failure 12: loads were admitted without memory in the device's pool, and declined ones were
    counted."""
    tiered = TieredEngine(slabs=24)
    first = prompt(400, seed=1)
    tiered.lone.ask("first", first, 1)
    tiered.empty_arena()
    cache = tiered.lone.engine._cache
    held = cache.allocate(
        submit("x", prompt(64, seed=9), 1).prompt,
        capacity_tokens=cache.capacity_tokens(2) - 4 * PAGE_TOKENS,
        working_slots=2,
    )
    assert held is not None
    asked = submit("y", [*first, 5, 6], 1).prompt
    assert cache.match(asked).stored
    refused = cache.allocate_or_load(asked, capacity_tokens=402, working_slots=2)
    assert refused is None
    assert tiered.report.loads["done"] == 0 and tiered.report.bytes["loaded"] == 0
    cache.release(held)
    tiered.lone.assert_at_rest()
    tiered.close()


def test_a_device_that_hangs_at_the_start_is_refused(tmp_path: Path) -> None:
    """Failure 9: an engine hangs if a driver is missing."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="too long"):
        within(0.05, lambda: pipe.read_bytes(), OSError("too long"))
    assert within(HANG_SECONDS, lambda: 3, OSError("too long")) == 3
    # Release the thread that waits in it.
    os.close(os.open(pipe, os.O_WRONLY))
