"""A GPU arena's content is loaded from a disk through pinned memory, with the digests taken by the
GPU, also from an earlier node. The disk's data is verified. Without a GPU its streams are simulated
as late."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tasuki.engine.config import EngineConfig
from tasuki.engine.tiers.copy_job import CopyJob, Direction, JobEnd, WriteLabel
from tasuki.engine.tiers.digests import DigestKind, page_bytes, slot_bytes
from tasuki.engine.tiers.disk.disk_memory import DiskMemory, disk_memory
from tasuki.engine.tiers.disk.kept_folder import DiskFailed
from tasuki.engine.tiers.gpu import gpu_copies
from tasuki.engine.tiers.host_memory import pinned
from tasuki.engine.tiers.store import PassingRows
from tasuki.engine.tiers.tier_copiers import tier_copiers
from tasuki.pycache.arena import Arena
from tasuki.pycache.layout import PAGE_TOKENS
from tests.harness.waiting import HANG_SECONDS, until

from .late_streams import put_in_place
from .test_word_digest import LAYOUT
from .word_digest_twin import digest

SLABS = 8
STRIDE = LAYOUT.blocks_per_slab
PAGES = [1, 0, STRIDE, STRIDE + 1, 3 * STRIDE]
BELOW = [0, STRIDE + 1, STRIDE, 2 * STRIDE, 2 * STRIDE + 1]
DISK = [5 * STRIDE, 5 * STRIDE + 1, 0, 1, 2 * STRIDE]
BACK = [6 * STRIDE + 1, 7 * STRIDE, 7 * STRIDE + 1, 5 * STRIDE, 6 * STRIDE]
SLOT, SLOT_BELOW, SLOT_ON_DISK, SLOT_BACK = 2, 4, 3, 4
LABEL = WriteLabel(b"", 0, None, np.arange(len(PAGES) * PAGE_TOKENS, dtype=np.int32), "turn_end")
POISON = 0xEE


class Node:
    """A GPU's arena of random bytes, poisoned memory below it, and a disk below that."""

    def __init__(self, folder: Path, device: torch.device) -> None:
        config = EngineConfig(
            model="m", host_cache_gib=1.0, disk_cache=str(folder), disk_cache_gib=1 / 128
        )
        disk = disk_memory(
            config, lambda _: LAYOUT, lambda: {"page_digests": DigestKind.WORDS.value}
        )
        assert disk is not None and disk.file.slabs >= SLABS
        self.disk: DiskMemory = disk
        self.arena = Arena(LAYOUT, SLABS, device)
        content = np.random.default_rng(1).integers(0, 256, self.arena.size, dtype=np.uint8)
        self.arena.bytes.copy_(torch.from_numpy(content))
        self.below = Arena(LAYOUT, SLABS, memory=pinned(LAYOUT, SLABS))
        self.below.bytes.fill_(POISON)
        self.copiers = tier_copiers(self.arena, self.below, disk)

    def end(self, tier: int, job: CopyJob) -> JobEnd:
        self.copiers[tier].begin(job)
        found: list[tuple[int, JobEnd]] = []
        until(lambda: bool(found.extend(self.copiers[tier].take_ended()) or found), "no end")
        return found[0][1]

    def write_down(self) -> None:
        """Write to the memory below, then to the disk, and poison the memory below."""
        pages = tuple(zip(PAGES, BELOW, strict=True))
        job = CopyJob(1, Direction.DOWN, pages, (SLOT, SLOT_BELOW))
        assert self.end(0, job) is JobEnd.DONE
        pages = tuple(zip(BELOW, DISK, strict=True))
        job = CopyJob(2, Direction.DOWN, pages, (SLOT_BELOW, SLOT_ON_DISK), LABEL)
        assert self.end(1, job) is JobEnd.DONE
        self.below.bytes.fill_(POISON)

    def load(self, *, state: bool = True) -> JobEnd:
        """Load from the disk to poisoned pages and a poisoned slot of the arena."""
        on_host = self.on_host()
        for page in BACK:
            page_bytes(on_host, page)[:] = POISON
        slot_bytes(on_host, SLOT_BACK)[:] = POISON
        self.arena.bytes.copy_(on_host.bytes)
        slot = (SLOT_ON_DISK, SLOT_BACK) if state else None
        job = CopyJob(3, Direction.UP, tuple(zip(DISK, BACK, strict=True)), slot)
        return self.end(1, job)

    def on_host(self) -> Arena:
        """Return a copy of the arena on the host."""
        return Arena(LAYOUT, SLABS, memory=self.arena.bytes.cpu().clone())

    def close(self) -> None:
        assert all(each.close(HANG_SECONDS) for each in self.copiers[::-1])
        self.disk.close()


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch, device: torch.device) -> None:
    if device.type == "cpu":
        put_in_place(monkeypatch)
        monkeypatch.setattr(DigestKind, "of", lambda device: DigestKind.WORDS)


@pytest.fixture
def started(tmp_path: Path, device: torch.device) -> Iterator[Callable[[], Node]]:
    """Return a node over the disk of an ended node."""
    nodes: list[Node] = []

    def start() -> Node:
        if nodes:
            nodes[-1].close()
        nodes.append(Node(tmp_path, device))
        return nodes[-1]

    yield start
    nodes[-1].close()


def expected(before: Arena) -> Arena:
    """Return the arena's content after everything was loaded."""
    for source, target in zip(PAGES, BACK, strict=True):
        page_bytes(before, target)[:] = page_bytes(before, source)
    slot_bytes(before, SLOT_BACK)[:] = slot_bytes(before, SLOT)
    return before


def whole_page(arena: Arena, page: int) -> NDArray[np.uint8]:
    return np.ascontiguousarray(page_bytes(arena, page)).ravel()


@pytest.mark.parametrize("segment", [1, 2 * LAYOUT.page_bytes, 1 << 24])
def test_what_went_to_a_disk_comes_up_elsewhere_and_nothing_else_is_touched(
    started: Callable[[], Node], monkeypatch: pytest.MonkeyPatch, segment: int
) -> None:
    monkeypatch.setattr(gpu_copies, "_LOAD_SEGMENT_BYTES", segment)
    node = started()
    before = node.on_host()
    node.write_down()
    written = node.copiers[1].written
    assert [written.pages[page] for page in DISK] == [
        digest(whole_page(before, page)) for page in PAGES
    ]
    assert written.slots == {SLOT_ON_DISK: digest(slot_bytes(before, SLOT))}
    for _ in range(2):
        assert node.load() is JobEnd.DONE
    assert np.array_equal(node.on_host().bytes.numpy(), expected(before).bytes.numpy())
    assert node.load(state=False) is JobEnd.DONE
    assert (slot_bytes(node.on_host(), SLOT_BACK) == POISON).all()


def test_a_node_that_starts_loads_what_the_one_before_wrote(started: Callable[[], Node]) -> None:
    node = started()
    before = node.on_host()
    node.write_down()
    node = started()
    assert node.disk.index.found == 1
    assert node.load() is JobEnd.DONE
    assert np.array_equal(node.on_host().bytes.numpy(), expected(before).bytes.numpy())


@pytest.mark.parametrize("where", ["page", "slot"])
def test_a_bit_that_flipped_on_a_disk_is_found(started: Callable[[], Node], where: str) -> None:
    node = started()
    node.write_down()
    node = started()
    file, page = node.disk.file, DISK[3:4]
    if where == "page":
        rows = PassingRows().rows(1, LAYOUT.page_bytes)
        file.get_pages(page, rows)
        rows[0, LAYOUT.page_bytes - 1] ^= 0x80
        file.put_pages(page, rows)
    else:
        (row,) = PassingRows().rows(1, LAYOUT.slot_bytes)
        file.get_slot(SLOT_ON_DISK, row)
        row[LAYOUT.slot_bytes - 1] ^= 0x80
        file.put_slot(SLOT_ON_DISK, row)
    assert node.load() is JobEnd.MISMATCH


def test_nothing_moves_once_a_load_broke_and_the_next_one_is_whole(
    started: Callable[[], Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With copies of all pages under way when the disk fails."""
    monkeypatch.setattr(gpu_copies, "_LOAD_SEGMENT_BYTES", 1)
    node = started()
    before = node.on_host()
    node.write_down()
    with monkeypatch.context() as patched:
        patched.setattr(node.disk.file, "get_slot", failing)
        assert node.load() is JobEnd.BROKEN
        broken = node.on_host()
    for source, target in zip(PAGES, BACK, strict=True):
        assert np.array_equal(page_bytes(broken, target), page_bytes(before, source))
    assert node.load() is JobEnd.DONE
    assert np.array_equal(node.on_host().bytes.numpy(), expected(before).bytes.numpy())


def failing(slot: int, row: NDArray[np.uint8]) -> None:
    raise DiskFailed("broken on purpose")
