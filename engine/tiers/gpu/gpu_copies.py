"""Copies between a GPU's arena and what is below it: pinned memory, and stores below that.

Owns streams and pinned parts. Thread rule: one thread. The GPU takes every digest from what the
arena has, so the host reads no bytes of it.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import cycle, groupby

import numpy as np
import torch

from tasuki.engine.tiers.copy_job import CopyJob, Moves, Piece, layer_pieces, slot_moves
from tasuki.engine.tiers.host_memory import pinned_passage
from tasuki.engine.tiers.store import Rows, TierSource, row_bytes
from tasuki.pycache.arena import Arena, PagePairs
from tasuki.pycache.layout import CacheLayout
from tasuki.utils.signatures import Work

from .moves import FIRST, LAST, RunMoves, batched_moves, recorded, settle, stream_of
from .word_digest import ArenaSums, add_rows, rows_of_piece, rows_of_state

_PIECE_BYTES = 256 << 20
"""Of what goes by one call: of most jobs all that a layer has. The host's part of a call is taken
from who launches layers behind a load, and from steps beside a write."""
_UNDER_WAY = 256 << 20
"""Bytes that are under way at a time, with the call that passes them: so many milliseconds that the
link never waits for the host. With all of a load at once each launch of a layer behind it takes
longer, and what nobody wants ends late."""


@dataclass(frozen=True)
class Lane:
    """Streams of copies and of digests, of one way."""

    copies: torch.cuda.Stream
    checks: torch.cuda.Stream


@dataclass(frozen=True)
class _Call:
    """layers: of which all has been moved behind it. rows: of the job's table, (first, end)."""

    layers: int
    moves: Moves
    rows: tuple[int, int]
    length: int


class GpuCopy:
    """`RunningCopy` between a GPU's arena and pinned host memory, either way.

    Pieces follow each other on one stream, and the digest of each behind it on another.
    """

    def __init__(
        self,
        arena: Arena,
        ids: tuple[list[int], int | None],
        moved: tuple[torch.Tensor, torch.Tensor],
        job: CopyJob,
        lane: Lane,
        run_moves: RunMoves,
    ) -> None:
        """ids: of the arena's pages and of its slot. moved: bytes, from and to."""
        self._arena = arena
        self._ids = ids
        self._moved = moved
        self._lane = lane
        self._run_moves = run_moves
        self._calls = _calls(arena, job)
        self._next = next(self._calls, None)
        self._under_way: deque[tuple[torch.cuda.Event, _Call]] = deque()
        self._bytes = 0
        self.layers = 0

    @cached_property
    def _sums(self) -> ArenaSums:
        """Made behind the first call, on the stream of checks: a table of a long job takes the host
        a millisecond or two, in which the states move."""
        return ArenaSums(self._arena, *self._ids)

    def advance(self) -> bool:
        if self._next is not None and self._bytes < self._limit:
            self._begin(self._next)
            self._next = next(self._calls, None)
            return True
        if not self._under_way:
            return False
        event, call = self._under_way.popleft()
        event.synchronize()
        self._bytes -= call.length
        self.layers = call.layers
        return True

    @property
    def _limit(self) -> int:
        """The first call, the state's, goes alone: meanwhile who computes behind a load uploads
        what it computes on, which would land behind all that had been asked for."""
        return _UNDER_WAY if self.layers else 1

    def _begin(self, call: _Call) -> None:
        lane = self._lane
        with torch.cuda.stream(lane.copies):
            self._run_moves(*self._moved, call.moves)
            copied = recorded()
        with torch.cuda.stream(lane.checks):
            lane.checks.wait_event(copied)
            self._sums.add(*call.rows)
            self._under_way.append((recorded(), call))
        self._bytes += call.length

    def digests(self) -> tuple[list[int], int | None]:
        with torch.cuda.stream(self._lane.checks):
            return self._sums.digests()

    def settle(self) -> None:
        settle(self._lane.copies)
        settle(self._lane.checks)


def _calls(arena: Arena, job: CopyJob) -> Iterator[_Call]:
    """The job's pieces in their order, those of the slot together."""
    end = 0
    for _, some in groupby(layer_pieces(arena.layout, job, _PIECE_BYTES), _call_of):
        pieces = list(some)
        first, end = end, end + sum(map(rows_of_piece, pieces))
        moves = np.concatenate([piece.moves for piece in pieces], axis=1)
        length = sum(piece.length for piece in pieces)
        yield _Call(pieces[-1].layers, moves, (first, end), length)


def _call_of(piece: Piece) -> tuple[int, int] | None:
    return None if piece.region is None else (piece.region, piece.pages[0])


@dataclass(frozen=True)
class _Ways:
    down: Lane
    up: Lane


class GpuCopies:
    """`PieceCopies` of pinned host memory below a GPU's arena.

    Thread rule: one thread; a load may go on while a write is under way. Invariants:
    1. A digest is of the bytes that the arena has, taken by the GPU: of what was copied down, and
       of what came up. So what went wrong on the way down, rotted in host memory or went wrong on
       the way up is found, and the host reads none of it. Pages that a write reads nobody changes,
       or the write is of no use: its digests may be taken before or behind the copies.
    2. A layer has landed once its digests are taken too: who computes behind a load may write the
       page and the slot that it goes on in.
    3. Whatever was begun has ended, or StillMoving was raised, when settle() returns.
    """

    def __init__(self, arena: Arena, below: Arena) -> None:
        """REQUIRES: all of below's memory is pinned, slab by slab at least."""
        self._arena = arena
        self._below = below
        self._device = arena.bytes.device
        # Steps go before digests: what is computed behind a load waits for its copies mostly.
        self._ways = _Ways(self._lane(LAST), self._lane(FIRST))
        self._run_moves = batched_moves()
        self._warm_up()

    def _lane(self, priority: int) -> Lane:
        """priority: of copies."""
        return Lane(stream_of(self._device, priority), stream_of(self._device, LAST))

    def _warm_up(self) -> None:
        """Nobody waits for a compiler while a prompt is loaded."""
        checks = self._ways.down.checks
        with torch.cuda.stream(checks):
            rows = torch.from_numpy(rows_of_state(self._arena.layout, 0, 0, 8, 0))
            sums = torch.zeros(1, 2, dtype=torch.int64, device=self._device)
            add_rows(self._arena.bytes.view(torch.int64), rows.to(self._device), sums)
        checks.synchronize()

    def down(self, job: CopyJob) -> GpuCopy:
        """Its copies rank below whatever else runs."""
        # The current device belongs to a thread.
        torch.cuda.set_device(self._device)
        ids = [page for page, _ in job.pages], None if job.slot is None else job.slot[0]
        moved = self._arena.bytes, self._below.bytes
        return GpuCopy(self._arena, ids, moved, job, self._ways.down, self._run_moves)

    def up(self, job: CopyJob) -> GpuCopy:
        torch.cuda.set_device(self._device)
        ids = [page for _, page in job.pages], None if job.slot is None else job.slot[1]
        moved = self._below.bytes, self._arena.bytes
        return GpuCopy(self._arena, ids, moved, job, self._ways.up, self._run_moves)


_LOAD_PIECE_BYTES = 32 << 20
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
        at_once = max(1, _LOAD_PIECE_BYTES // page)
        passages = [Passage(max(at_once * page, slot)) for _ in range(_PARTS)]
        stream = stream_of(arena.bytes.device, FIRST)
        self._way = _Way(store, arena, at_once, passages, stream, batched_moves())

    def up(self, job: CopyJob) -> "GpuLoad":
        # The current device belongs to a thread.
        torch.cuda.set_device(self._way.arena.bytes.device)
        return GpuLoad(self._way, job)


class GpuLoad:
    """Loads from a store below host memory to a GPU's arena, through two parts of pinned memory by
    turns: while the GPU copies from one the store fills the other.

    Thread rule: as `StoreLoads`. Invariants:
    1. A digest is of what the arena has, taken by the GPU once all of a load is there: the host
       reads none of it.
    2. A part is filled again once what it held has reached the arena.

    `RunningCopy`. A store has pages in one piece: no layer is there before all are.
    """

    layers = 0

    def __init__(self, way: _Way, job: CopyJob) -> None:
        self._way = way
        self._passages = cycle(way.passages)
        self._left = self._pieces(job)
        pages, slot = [page for _, page in job.pages], None if job.slot is None else job.slot[1]
        with torch.cuda.stream(way.stream):
            self._sums = ArenaSums(way.arena, pages, slot)

    def _pieces(self, job: CopyJob) -> Iterator[Work[None]]:
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
