"""Loads from a store below host memory to a GPU's arena, through two parts of pinned memory by
turns: while the GPU copies from one the store fills the other.

Thread rule: as `StoreLoads`.
Invariants:
1. A digest is of what the arena has, taken by the GPU once all of a load is there: the host reads
   none of it.
2. A part is filled again once what it held has reached the arena.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle

import numpy as np
import torch

from tasuki.engine.tiers.copy_job import CopyJob
from tasuki.engine.tiers.layer_pieces import Moves, slot_moves
from tasuki.engine.tiers.store.io_threads import Call
from tasuki.engine.tiers.store.rows import Rows, row_bytes
from tasuki.engine.tiers.store.tier_store import TierSource
from tasuki.pycache.arena import Arena
from tasuki.pycache.layout import CacheLayout
from tasuki.pycache.place_copies import PagePairs

from .arena_sums import ArenaSums
from .batched_moves import RunMoves, batched_moves
from .pinned_memory import pinned_passage
from .streams import FIRST, recorded, settle, stream_of

_PIECE_BYTES = 32 << 20
"""That a store is asked for at a time: several reads for each that it has in flight."""
_PARTS = 2


class Passage:
    """A part of pinned memory, which a piece passes through."""

    def __init__(self, size: int) -> None:
        """Raises EngineConfigError."""
        self.memory = pinned_passage(size)
        self._left: torch.cuda.Event | None = None

    def rows(self, count: int, size: int) -> Rows:
        """For so many bytes each, once the piece before has reached the arena."""
        if self._left is not None:
            self._left.synchronize()
        length = row_bytes(size)
        found: Rows = self.memory.numpy()[: count * length].reshape(count, length)
        return found

    def leaves(self) -> None:
        """Behind all that the current stream has."""
        self._left = recorded()


@dataclass(frozen=True)
class _Way:
    """at_once: pages of a piece."""

    store: TierSource
    arena: Arena
    at_once: int
    passages: Sequence[Passage]
    stream: torch.cuda.Stream
    run_moves: RunMoves


class GpuLoads:
    """`StoreLoads`."""

    def __init__(self, arena: Arena, store: TierSource) -> None:
        """Raises EngineConfigError where there is no memory to be pinned."""
        page, slot = row_bytes(arena.layout.page_bytes), row_bytes(arena.layout.slot_bytes)
        at_once = max(1, _PIECE_BYTES // page)
        passages = [Passage(max(at_once * page, slot)) for _ in range(_PARTS)]
        stream = stream_of(arena.bytes.device, FIRST)
        self._way = _Way(store, arena, at_once, passages, stream, batched_moves())

    def up(self, job: CopyJob) -> "GpuLoad":
        # The current device belongs to a thread.
        torch.cuda.set_device(self._way.arena.bytes.device)
        return GpuLoad(self._way, job)


class GpuLoad:
    """`RunningCopy`. A store has pages in one piece: no layer is there before all are."""

    layers = 0

    def __init__(self, way: _Way, job: CopyJob) -> None:
        self._way = way
        self._passages = cycle(way.passages)
        self._left = self._pieces(job)
        pages, slot = [page for _, page in job.pages], None if job.slot is None else job.slot[1]
        with torch.cuda.stream(way.stream):
            self._sums = ArenaSums(way.arena, pages, slot)

    def _pieces(self, job: CopyJob) -> Iterator[Call]:
        at_once = self._way.at_once
        for first in range(0, len(job.pages), at_once):
            yield partial(self._pages_up, job.pages[first : first + at_once])
        if job.slot is not None:
            yield partial(self._slot_up, job.slot)

    def advance(self) -> bool:
        piece = next(self._left, None)
        if piece is not None:
            piece()
            return True
        with torch.cuda.stream(self._way.stream):
            recorded().synchronize()
        return False

    def _pages_up(self, pages: PagePairs) -> None:
        layout = self._way.arena.layout
        sources, targets = zip(*pages, strict=True)
        passage = next(self._passages)
        rows = passage.rows(len(pages), layout.page_bytes)
        self._way.store.get_pages(sources, rows)
        self._pass(passage, _page_moves(layout, targets, rows.shape[1]))

    def _slot_up(self, slot: tuple[int, int]) -> None:
        layout = self._way.arena.layout
        passage = next(self._passages)
        self._way.store.get_slot(slot[0], passage.rows(1, layout.slot_bytes)[0])
        self._pass(passage, slot_moves(layout, (0, slot[1]), 0, layout.slot_bytes))

    def _pass(self, passage: Passage, moves: Moves) -> None:
        with torch.cuda.stream(self._way.stream):
            self._way.run_moves(passage.memory, self._way.arena.bytes, moves)
            passage.leaves()

    def digests(self) -> tuple[list[int], int | None]:
        with torch.cuda.stream(self._way.stream):
            self._sums.add_all()
            return self._sums.digests()

    def settle(self) -> None:
        settle(self._way.stream)


def _page_moves(layout: CacheLayout, pages: Sequence[int], row: int) -> Moves:
    """Of whole pages, each of which has a row of so many bytes: its blocks by region."""
    regions = np.arange(len(layout.regions))
    sources = np.arange(len(pages))[:, None] * row + regions * layout.block_bytes
    targets = np.array(pages)[:, None] * layout.block_bytes + regions * layout.region_stride
    lengths = np.full(sources.shape, layout.block_bytes)
    found: Moves = np.stack([part.ravel() for part in (sources, targets, lengths)])
    return found
