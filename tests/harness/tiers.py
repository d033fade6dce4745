"""Engines with host memory below their arena. A test can make the copies between arena and host
memory fail."""

import threading
from collections.abc import Callable
from dataclasses import replace
from enum import Enum, auto
from pathlib import Path

import numpy as np

from tasuki.engine import messages as m
from tasuki.engine.assembly.parts import EngineParts
from tasuki.engine.tiers.copy_job import Segment
from tasuki.engine.tiers.copy_thread import CopyThread
from tasuki.engine.tiers.disk.disk_memory import DiskFile, DiskMemory
from tasuki.engine.tiers.disk.kept_folder import KeptFolder
from tasuki.engine.tiers.disk.kept_index import KeptIndex
from tasuki.engine.tiers.remote.remote_memory import RemoteMemory
from tasuki.engine.tiers.segment_copies import HostCopies
from tasuki.engine.tiers.store import HostSource, TierSource
from tasuki.engine.tiers.tier_copiers import disk_copier, remote_copier
from tasuki.pycache.arena import Arena, PagePairs
from tasuki.pycache.layout import PAGE_TOKENS, CacheLayout
from tests.harness.engines import Lone, prompt, tiny_engine, tiny_parts
from tests.harness.waiting import HANG_SECONDS, ManualClock, until


class Fault(Enum):
    FLIP = auto()
    """Fault: one bit of the copied data is wrong."""
    SKIP = auto()
    """Fault: the data is not copied, and no error is reported."""
    RAISE = auto()


class FaultyCopies(HostCopies):
    """Copies between arena and host memory, with faults. fault: called before each segment with its
    name (slot_up and so on); returns the segment's fault, if any. A hold or fault at "last_up"
    affects the last segment of each load, also under its other name."""

    def __init__(
        self, arena: Arena, below: Arena, fault: Callable[[str], Fault | None] = lambda name: None
    ) -> None:
        super().__init__(arena, below)
        self.fault = fault
        self._held: set[str] = set()
        self._changed = threading.Condition()
        self.inside: set[str] = set()

    def hold(self, *names: str) -> None:
        """Hold segments of the given names at their start until let_go()."""
        with self._changed:
            self._held.update(names)

    def let_go(self) -> None:
        with self._changed:
            self._held.clear()
            self._changed.notify_all()

    def await_inside(self, name: str) -> None:
        """Wait until a segment of this name is held."""
        with self._changed:
            assert self._changed.wait_for(lambda: name in self.inside, HANG_SECONDS)

    def _begin(self, name: str) -> Fault | None:
        with self._changed:
            self.inside.add(name)
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: name not in self._held, HANG_SECONDS)
            self.inside.discard(name)
        fault = self.fault(name)
        if fault is Fault.RAISE:
            raise OSError("broken on purpose")
        return fault

    def pages_down(self, pages: PagePairs) -> list[int]:
        fault = self._begin("pages_down")
        if fault is Fault.SKIP:
            return self._digests.of_pages([page for page, _ in pages])
        digests = super().pages_down(pages)
        if fault is Fault.FLIP:
            flip_page(self._below, pages[-1][1])
        return digests

    def slot_down(self, slot: tuple[int, int]) -> int:
        fault = self._begin("slot_down")
        if fault is Fault.SKIP:
            return self._digests.of_slot(slot[0])
        digest = super().slot_down(slot)
        if fault is Fault.FLIP:
            flip_slot(self._below, slot[1])
        return digest

    def move_up(self, segment: Segment) -> None:
        fault = self._begin("slot_up" if segment.region is None else "pages_up")
        if segment.layers == len(self._arena.layout.layers):
            fault = self._begin("last_up") or fault
        if fault is Fault.SKIP:
            return
        super().move_up(segment)
        if fault is Fault.FLIP:
            _, first, length = segment.moves[:, -1].tolist()
            self._arena.bytes[first + length - 1] ^= 1


def flip_page(arena: Arena, page: int) -> None:
    """Flip a bit of a page's last region in the arena."""
    layout = arena.layout
    block = page + (len(layout.regions) - 1) * layout.pages_per_slab
    arena.bytes[(block + 1) * layout.block_bytes - 1] ^= 1


def flip_slot(arena: Arena, slot: int) -> None:
    arena.bytes[slot * arena.layout.slab_bytes + arena.layout.slot_bytes - 1] ^= 1


def flip_everything(arena: Arena) -> None:
    np.bitwise_xor(arena.bytes.numpy(), 1, out=arena.bytes.numpy())


def tiered_parts(
    slabs: int = 24,
    host_slabs: int = 120,
    disk: DiskMemory | None = None,
    kv_dtype: str = "float32",
    remote: RemoteMemory | None = None,
) -> tuple[EngineParts, "Copies"]:
    """Return parts of a tiny engine with few slabs and many in host memory. The copies are made
    with the engine. disk, remote: further tiers."""
    copies = Copies()

    def copiers(parts: EngineParts) -> list[CopyThread]:
        assert parts.host is not None
        copies.made = FaultyCopies(parts.arena, parts.host)
        host = CopyThread(copies.made)
        found: list[CopyThread] = [host]
        source: TierSource = HostSource(parts.host)
        if parts.disk is not None:
            copies.disk = disk_copier(parts.arena, parts.host, host, parts.disk)
            found.append(copies.disk)
            source = parts.disk.file
        if parts.remote is not None:
            found.append(remote_copier(parts.arena, source, found[-1].written, parts.remote))
        return found

    parts = tiny_parts(slabs=slabs, host_slabs=host_slabs, disk=disk, kv_dtype=kv_dtype)
    return replace(parts, copiers=copiers, remote=remote), copies


class Copies:
    """The copies of a tiered engine, available once the engine is made. made: between arena and
    host memory, with faults. disk: thread copying to and from the disk tier."""

    made: FaultyCopies
    disk: CopyThread


class TieredEngine:
    """A tiny engine with few slabs and many in host memory, and the copies between the two."""

    def __init__(
        self,
        slabs: int = 24,
        host_slabs: int = 120,
        disk: DiskMemory | None = None,
        kv_dtype: str = "float32",
        remote: Callable[[ManualClock], RemoteMemory] | None = None,
        **settings: object,
    ) -> None:
        # A busy machine makes no load late.
        self.clock = ManualClock()
        below = None if remote is None else remote(self.clock)
        parts, copies = tiered_parts(slabs, host_slabs, disk, kv_dtype, below)
        self.parts = replace(parts, clock=self.clock)
        self.lone: Lone = tiny_engine(parts=self.parts, **settings)
        self.copies = copies.made

    @property
    def report(self) -> m.TierReport:
        """The engine's report about its host memory tier."""
        return self.reports[0]

    @property
    def reports(self) -> tuple[m.TierReport, ...]:
        return self.lone.stats().tiers

    def empty_arena(self, seed: int = 10_000) -> None:
        """Fill the arena with another prompt, so earlier prefixes are only in lower tiers."""
        tokens = (self.parts.arena.slabs - 3) * PAGE_TOKENS
        self.lone.ask(f"push-{seed}", prompt(tokens, seed), 1)

    def step_until(self, holds: Callable[[], bool]) -> None:
        """Run engine steps until `holds` returns True, also while copies are held; run() would wait
        for the copies."""

        def stepped() -> bool:
            self.lone.step()
            return holds()

        until(stepped, "the engine did not come so far")

    def is_over(self, name: str) -> bool:
        ends = self.lone.all_said(m.Finished)
        return any(end.request_id == name for end in ends)

    def close(self) -> None:
        self.copies.let_go()
        self.lone.engine.close()


class FaultyDisk(DiskFile):
    """A file of the disk tier, with faults. fault: called before each segment with its name (read
    or written). FLIP: one bit of a read is wrong. SKIP: a write is lost, or a read leaves the
    memory unchanged."""

    def __init__(self, folder: Path, layout: CacheLayout, slabs: int) -> None:
        self.folder = KeptFolder(folder, {"model": "of a test"})
        super().__init__(self.folder, layout, slabs)
        self.fault: Callable[[str], Fault | None] = lambda name: None
        self._open = threading.Event()
        self._open.set()
        self.hangs = threading.Event()

    def memory(self, pages_a_second: float | None = None) -> DiskMemory:
        """Return the disk tier over this file, with the entries stored earlier. pages_a_second:
        limit on its writes."""
        return DiskMemory(self, KeptIndex(self.folder, self.layout, self.slabs), pages_a_second)

    def hang(self) -> None:
        """Make every read and write hang from the next segment on, until let_go()."""
        self._open.clear()

    def let_go(self) -> None:
        self._open.set()

    def _move(
        self,
        what: str,
        call: Callable[[int, list[memoryview], int], int],
        memory: memoryview,
        offset: int,
    ) -> None:
        if not self._open.is_set():
            self.hangs.set()
            assert self._open.wait(HANG_SECONDS)
        fault = self.fault(what)

        def faulty(file: int, segments: list[memoryview], at: int) -> int:
            if fault is Fault.RAISE:
                raise OSError(5, "broken on purpose")
            if fault is Fault.SKIP:
                return len(memory)
            moved = call(file, segments, at)
            if fault is Fault.FLIP and what == "read":
                segments[0][0] ^= 1
            return moved

        super()._move(what, faulty, memory, offset)
