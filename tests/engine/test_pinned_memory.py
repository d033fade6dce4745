"""Host memory pinned in segments: no slab in two segments, bounded, logged, unpinned at its end."""

import gc
import logging
import mmap

import pytest

from scripts.chaos.tier_turns import LAYOUT
from tasuki.engine.config import EngineConfigError
from tasuki.engine.tiers import host_memory
from tasuki.engine.tiers.host_memory import MOST_SECONDS, pinned, pinned_passage, segment_bytes

SLABS = 40


class Pinning:
    def __init__(self, most: int = 1 << 40) -> None:
        self.segments: dict[int, int] = {}
        self._most = most

    def pin(self, address: int, size: int) -> None:
        if sum(self.segments.values()) + size > self._most:
            raise RuntimeError("no more")
        self.segments[address] = size

    def let_go(self, address: int) -> None:
        del self.segments[address]


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "_SEGMENT_BYTES", 1)


def test_no_slab_is_in_two_pieces_and_no_page_of_the_system_either() -> None:
    pinning = Pinning()
    memory = pinned(LAYOUT, SLABS, pinning)
    assert memory.numel() == SLABS * LAYOUT.slab_bytes and not memory.any()
    starts = [address - memory.data_ptr() for address in pinning.segments]
    assert len(starts) > 1 and sum(pinning.segments.values()) == memory.numel()
    for start in starts:
        assert start % LAYOUT.slab_bytes == 0 and start % mmap.PAGESIZE == 0
    assert segment_bytes(LAYOUT) % LAYOUT.slab_bytes == 0


def test_what_was_pinned_is_let_go_with_the_memory() -> None:
    pinning = Pinning()
    memory = pinned(LAYOUT, SLABS, pinning)
    assert pinning.segments
    del memory
    gc.collect()
    assert not pinning.segments


def test_memory_that_cannot_be_pinned_is_refused_by_name() -> None:
    pinning = Pinning(most=segment_bytes(LAYOUT))
    with pytest.raises(EngineConfigError, match="control group"):
        pinned(LAYOUT, SLABS, pinning)


def test_pinning_is_bounded_and_said(caplog: pytest.LogCaptureFixture) -> None:
    times = iter([0.0, 11.0, 12.0, MOST_SECONDS + 1.0])
    with caplog.at_level(logging.INFO), pytest.raises(EngineConfigError, match="give less"):
        pinned(LAYOUT, 8 * SLABS, Pinning(), lambda: next(times))
    assert "of host memory pinned" in caplog.text


def test_what_a_disk_reads_into_is_pinned_whole_from_a_page_of_the_systems_on() -> None:
    pinning, size = Pinning(), 3 * mmap.PAGESIZE
    memory = pinned_passage(size, pinning)
    assert pinning.segments == {memory.data_ptr(): size} and memory.numel() == size
    assert memory.data_ptr() % mmap.PAGESIZE == 0
    del memory
    gc.collect()
    assert not pinning.segments
    with pytest.raises(EngineConfigError, match="leave disk_cache and remote_cache out"):
        pinned_passage(size, Pinning(most=size - 1))
