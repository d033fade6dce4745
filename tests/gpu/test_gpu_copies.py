"""Copies between a GPU's arena and pinned memory: the moved bytes and the result of their digests.
No other byte is touched."""

import numpy as np
import pytest
import torch

from tasuki.engine.tiers.copy_job import CopyJob, Direction, JobEnd
from tasuki.engine.tiers.copy_thread import CopyThread
from tasuki.pycache.arena import Arena
from tasuki.pycache.layout import CacheLayout
from tests.gpu.shapes import CONFIGS
from tests.harness.waiting import HANG_SECONDS, until
from tests.kernels.word_digest_twin import digest

SLABS = 12
POISON = 0xEE


class Between:
    """An arena of random bytes, poisoned pinned memory below it, and a copying thread."""

    def __init__(self) -> None:
        from tasuki.engine.tiers.gpu.gpu_copies import GpuCopies
        from tasuki.engine.tiers.host_memory import pinned

        model = CONFIGS["dense"]
        self.layout: CacheLayout = model.cache_layout("bfloat16", "bfloat16", "float32")
        self.arena = Arena(self.layout, SLABS, "cuda")
        self.arena.bytes.random_(0, 256)
        self.below = Arena(self.layout, SLABS, memory=pinned(self.layout, SLABS))
        self.below.bytes.fill_(POISON)
        self.copies = GpuCopies(self.arena, self.below)
        self.thread = CopyThread(self.copies)
        self._number = 0

    def end(self, direction: Direction, pages: list[tuple[int, int]], slot: object) -> JobEnd:
        self._number += 1
        self.thread.begin(CopyJob(self._number, direction, tuple(pages), slot))  # type: ignore[arg-type]
        found: list[tuple[int, JobEnd]] = []
        until(lambda: bool(found.extend(self.thread.take_ended()) or found), "no end")
        return found[0][1]

    def page(self, arena: Arena, page: int) -> np.ndarray:  # type: ignore[type-arg]
        blocks = arena.bytes.view(-1, self.layout.block_bytes)
        step = self.layout.pages_per_slab
        return blocks[page : page + len(self.layout.regions) * step : step].cpu().numpy().ravel()

    def slot(self, arena: Arena, slot: int) -> np.ndarray:  # type: ignore[type-arg]
        first = slot * self.layout.slab_bytes
        return arena.bytes[first : first + self.layout.slot_bytes].cpu().numpy()


@pytest.fixture
def between() -> Between:
    return Between()


def pages_of(layout: CacheLayout, slab: int, count: int) -> list[int]:
    return [slab * layout.blocks_per_slab + page for page in range(count)]


def test_pages_and_a_slot_go_down_and_come_up_elsewhere(between: Between) -> None:
    layout = between.layout
    count = layout.pages_per_slab
    sources = pages_of(layout, 1, count) + pages_of(layout, 3, 2)
    # Neighbours, strangers, and across slabs.
    below = pages_of(layout, 5, count)[::-1] + pages_of(layout, 2, 2)
    back = pages_of(layout, 7, count) + pages_of(layout, 9, 2)
    expected = [between.page(between.arena, page) for page in sources]
    state = between.slot(between.arena, 4)
    assert (
        between.end(Direction.DOWN, list(zip(sources, below, strict=True)), (4, 0)) is JobEnd.DONE
    )
    for page, content in zip(below, expected, strict=True):
        assert np.array_equal(between.page(between.below, page), content)
        assert between.thread.written.pages[page] == digest(content)
    assert between.thread.written.slots[0] == digest(state)
    for page in back:
        between.arena.bytes.view(-1, layout.block_bytes)[page].fill_(POISON)
    before = between.arena.bytes.cpu().numpy().copy()
    assert between.end(Direction.UP, list(zip(below, back, strict=True)), (0, 10)) is JobEnd.DONE
    for page, content in zip(back, expected, strict=True):
        assert np.array_equal(between.page(between.arena, page), content)
    assert np.array_equal(between.slot(between.arena, 10), state)
    touched = np.zeros(before.shape, dtype=np.bool_)
    blocks = touched.reshape(-1, layout.block_bytes)
    step = layout.pages_per_slab
    for page in back:
        blocks[page : page + len(layout.regions) * step : step] = True
    touched[10 * layout.slab_bytes : 10 * layout.slab_bytes + layout.slot_bytes] = True
    after = between.arena.bytes.cpu().numpy()
    assert np.array_equal(after[~touched], before[~touched])
    assert between.thread.close(HANG_SECONDS)


@pytest.mark.parametrize("where", ["page", "slot"])
def test_memory_that_rots_below_is_found(between: Between, where: str) -> None:
    layout = between.layout
    pages = pages_of(layout, 1, 2)
    assert between.end(Direction.DOWN, [(page, page) for page in pages], (4, 4)) is JobEnd.DONE
    at = (pages[1] + 1) * layout.block_bytes - 1 if where == "page" else 4 * layout.slab_bytes + 7
    between.below.bytes[at] ^= 0x80
    jobs = [(page, page + layout.blocks_per_slab * 5) for page in pages]
    assert between.end(Direction.UP, jobs, (4, 9)) is JobEnd.MISMATCH
    between.below.bytes[at] ^= 0x80
    assert between.end(Direction.UP, jobs, (4, 9)) is JobEnd.DONE


def test_pages_that_were_mixed_up_below_are_found(between: Between) -> None:
    first, second = pages_of(between.layout, 1, 2)
    assert between.end(Direction.DOWN, [(first, first), (second, second)], (4, 4)) is JobEnd.DONE
    blocks = between.below.bytes.view(-1, between.layout.block_bytes)
    blocks[[first, second]] = blocks[[second, first]]
    jobs = [(first, second), (second, first)]
    assert between.end(Direction.UP, jobs, (4, 9)) is JobEnd.MISMATCH


def test_layers_open_in_order_and_all_at_the_end(between: Between) -> None:
    layout = between.layout
    pages = [(page, page) for page in pages_of(layout, 1, layout.pages_per_slab)]
    assert between.end(Direction.DOWN, pages, (4, 4)) is JobEnd.DONE
    copy = between.copies.up(CopyJob(9, Direction.UP, tuple(pages), (4, 9)))
    seen = [copy.layers]
    while copy.advance():
        seen.append(copy.layers)
    assert seen == sorted(seen) and seen[0] == 0 and seen[-1] == len(layout.layers)
    found, slot = copy.digests()
    assert found == [between.thread.written.pages[page] for page, _ in pages]
    assert slot == between.thread.written.slots[4]
    copy.settle()
    torch.cuda.synchronize()
