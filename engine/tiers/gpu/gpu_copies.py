"""`PieceCopies` of pinned host memory below a GPU's arena.

Owns three streams: of copies down, which ranks below whatever else runs, of copies up, and of the
digests of what came up. Thread rule: one thread.
Invariants:
1. A digest is of the bytes that the arena has, taken by the GPU: before they are copied down, and
   after they came up. So what went wrong on the way down, rotted in host memory or went wrong on
   the way up is found, and the host reads none of it.
2. Whatever was begun has ended, or StillMoving was raised, before a call that moves pages down
   returns, and when settle() does.
"""

from collections import deque

import numpy as np
import torch

from tasuki.engine.tiers.copy_job import CopyJob
from tasuki.engine.tiers.layer_pieces import (
    Moves,
    Piece,
    layer_pieces,
    page_runs,
    region_moves,
    slot_moves,
)
from tasuki.engine.tiers.up_copy import StillMoving
from tasuki.pycache.arena import Arena
from tasuki.pycache.place_copies import PagePairs

from .batched_moves import batched_moves
from .word_digest import Rows, add_rows, digests_of, rows_of_pages, rows_of_state

_DOWN_BYTES = 128 << 20
"""Of a piece down: two or three milliseconds, which a load waits for at most."""
_UP_BYTES = 32 << 20
_UNDER_WAY = 128 << 20
"""Bytes up that are under way at a time: two or three milliseconds, so that the link never waits
for the host, and a load that nobody wants ends soon."""
_LAST, _FIRST = 0, -1
"""Priorities: a smaller one goes first."""


class GpuCopies:
    piece_bytes = _DOWN_BYTES

    def __init__(self, arena: Arena, below: Arena) -> None:
        """REQUIRES: all of below's memory is pinned, slab by slab at least."""
        self.arena = arena
        self.below = below
        self._device = arena.bytes.device
        self._down = self._stream(_LAST)
        self.upward = self._stream(_FIRST)
        self.checks = self._stream(_FIRST)
        self.words = arena.bytes.view(torch.int64)
        self.run_moves = batched_moves()
        self._warm_up()

    def _stream(self, priority: int) -> torch.cuda.Stream:
        return torch.cuda.Stream(self._device, priority=priority)  # type: ignore[no-untyped-call]

    def _warm_up(self) -> None:
        """Nobody waits for a compiler while a prompt is loaded."""
        with torch.cuda.stream(self._down):
            rows = rows_of_state(self.arena.layout, 0, 0, 8, 0)
            add_rows(self.words, self.on_device(rows), self.zeros(1))
        self._down.synchronize()

    def pages_down(self, pages: PagePairs) -> list[int]:
        layout = self.arena.layout
        sources = [page for page, _ in pages]
        rows = [rows_of_pages(layout, region.index, sources, 0) for region in layout.regions]
        runs = page_runs(layout, pages)
        moves = [region_moves(layout, region, runs) for region in layout.regions]
        return self._write(np.concatenate(rows, axis=1), np.concatenate(moves, axis=1), len(pages))

    def slot_down(self, slot: tuple[int, int]) -> int:
        layout = self.arena.layout
        rows = rows_of_state(layout, slot[0], 0, layout.slot_bytes, 0)
        return self._write(rows, slot_moves(layout, slot, 0, layout.slot_bytes), 1)[0]

    def _write(self, rows: Rows, moves: Moves, units: int) -> list[int]:
        # The current device belongs to a thread.
        torch.cuda.set_device(self._device)
        try:
            with torch.cuda.stream(self._down):
                sums = self.zeros(units)
                add_rows(self.words, self.on_device(rows), sums)
                self.run_moves(self.arena.bytes, self.below.bytes, moves)
                found = read(sums)
        finally:
            _settle(self._down)
        return digests_of(found.numpy())

    def up(self, job: CopyJob) -> "GpuUpCopy":
        torch.cuda.set_device(self._device)
        return GpuUpCopy(self, job)

    def zeros(self, units: int) -> torch.Tensor:
        return torch.zeros(units, 2, dtype=torch.int64, device=self._device)

    def on_device(self, rows: Rows) -> torch.Tensor:
        return torch.from_numpy(rows).pin_memory().to(self._device, non_blocking=True)


class GpuUpCopy:
    """`UpCopy`: pieces follow each other on the stream, and the digest of each behind it on
    another, so that no copy waits for a digest."""

    def __init__(self, copies: GpuCopies, job: CopyJob) -> None:
        self._copies = copies
        self._job = job
        self._pieces = layer_pieces(copies.arena.layout, job, _UP_BYTES)
        self._next = next(self._pieces, None)
        self._under_way: deque[tuple[torch.cuda.Event, Piece]] = deque()
        self._bytes = 0
        self.layers = 0
        with torch.cuda.stream(copies.checks):
            self._sums = copies.zeros(len(job.pages) + 1)

    def _rows(self, piece: Piece) -> Rows:
        layout, unit = self._copies.arena.layout, len(self._job.pages)
        if piece.region is not None:
            first, end = piece.pages
            targets = [page for _, page in self._job.pages[first:end]]
            return rows_of_pages(layout, piece.region, targets, first)
        assert self._job.slot is not None
        slot, (_, start, length) = self._job.slot[1], piece.moves[:, 0].tolist()
        return rows_of_state(layout, slot, start - slot * layout.slab_bytes, length, unit)

    def advance(self) -> bool:
        if self._next is not None and self._bytes < _UNDER_WAY:
            self._begin(self._next)
            self._next = next(self._pieces, None)
            return True
        if not self._under_way:
            return False
        event, piece = self._under_way.popleft()
        event.synchronize()
        self._bytes -= piece.length
        self.layers = piece.layers
        return True

    def _begin(self, piece: Piece) -> None:
        copies = self._copies
        with torch.cuda.stream(copies.upward):
            copies.run_moves(copies.below.bytes, copies.arena.bytes, piece.moves)
            event = recorded()
        with torch.cuda.stream(copies.checks):
            copies.checks.wait_event(event)
            add_rows(copies.words, copies.on_device(self._rows(piece)), self._sums)
        self._under_way.append((event, piece))
        self._bytes += piece.length

    def digests(self) -> tuple[list[int], int | None]:
        with torch.cuda.stream(self._copies.checks):
            found = read(self._sums)
            recorded().synchronize()
        *pages, slot = digests_of(found.numpy())
        return pages, None if self._job.slot is None else slot

    def settle(self) -> None:
        _settle(self._copies.upward)
        _settle(self._copies.checks)


def read(sums: torch.Tensor) -> torch.Tensor:
    """On its way to pinned host memory, behind what the current stream has."""
    found = torch.empty(sums.shape, dtype=sums.dtype, pin_memory=True)
    found.copy_(sums, non_blocking=True)
    return found


def recorded() -> torch.cuda.Event:
    """Behind all that the current stream has; who waits for it sleeps."""
    event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def _settle(stream: torch.cuda.Stream) -> None:
    try:
        with torch.cuda.stream(stream):
            recorded().synchronize()
    except Exception as error:
        raise StillMoving(f"a stream of copies cannot be waited for: {error}") from error
