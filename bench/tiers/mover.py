"""Copies between two arenas of their own, at a steady rate, beside whatever else runs."""

import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from tasuki.bench.errors import BenchError
from tasuki.engine.tiers.copy_job import CopyJob, Direction
from tasuki.engine.tiers.piece_copies import PieceCopies
from tasuki.pycache.arena import PagePairs
from tasuki.pycache.layout import CacheLayout

_PIECE_BYTES = 64 << 20
_END_SECONDS = 30.0


class Mover:
    """Thread rule: who asks for it; while moving() its copies are its own thread's."""

    def __init__(self, copies: PieceCopies, layout: CacheLayout, slabs: int) -> None:
        """slabs: of both arenas, which nobody else reads or writes."""
        self._copies = copies
        self._layout = layout
        blocks, pages = layout.blocks_per_slab, layout.pages_per_slab
        self._pages = [
            (slab * blocks + page, slab * blocks + page)
            for slab in range(1, slabs)
            for page in range(pages)
        ]
        self._moved = 0

    @property
    def size(self) -> int:
        """Bytes of all that is moved by one call below: pages and a slot."""
        return len(self._pages) * self._layout.page_bytes + self._layout.slot_bytes

    def down(self) -> float:
        """Seconds to write all once."""
        return self._move_all(Direction.DOWN)

    def up(self) -> float:
        """Seconds to load all once."""
        return self._move_all(Direction.UP)

    def _move_all(self, way: Direction) -> float:
        began = time.perf_counter()
        self._copy(CopyJob(0, way, tuple(self._pages), (0, 0)))
        return time.perf_counter() - began

    def _copy(self, job: CopyJob) -> None:
        begin = self._copies.up if job.direction is Direction.UP else self._copies.down
        copy = begin(job)
        while copy.advance():
            pass
        copy.digests()
        copy.settle()

    def moving(self, direction: Direction, bytes_a_second: float) -> AbstractContextManager[None]:
        """That much, that way, until the block ends. Raises BenchError where it was less."""
        return self._moving(direction, bytes_a_second)

    @contextmanager
    def _moving(self, direction: Direction, bytes_a_second: float) -> Iterator[None]:
        ends = threading.Event()
        self._moved = 0
        thread = threading.Thread(target=self._move, args=(direction, bytes_a_second, ends))
        began = time.perf_counter()
        thread.start()
        try:
            yield
        finally:
            ends.set()
            thread.join(_END_SECONDS)
        reached = self._moved / (time.perf_counter() - began)
        if reached < 0.9 * bytes_a_second:
            raise BenchError(
                f"{reached / 1e9:.2f} GB/s were {direction.value} and {bytes_a_second / 1e9:g} are "
                "asked for: give a lower --gb-a-second"
            )

    def _move(self, direction: Direction, bytes_a_second: float, ends: threading.Event) -> None:
        began = time.perf_counter()
        while not ends.is_set():
            for pages in self._parts(_PIECE_BYTES):
                self._copy(CopyJob(0, direction, tuple(pages), None))
                self._moved += len(pages) * self._layout.page_bytes
                ahead = self._moved / bytes_a_second - (time.perf_counter() - began)
                if ends.wait(max(0.0, ahead)):
                    return

    def _parts(self, size: int) -> Iterator[PagePairs]:
        at_once = max(1, size // self._layout.page_bytes)
        for first in range(0, len(self._pages), at_once):
            yield self._pages[first : first + at_once]
