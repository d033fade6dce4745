"""Copies between a GPU's arena and the tiers below it: pinned host memory, and stores below it."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import cycle, groupby

import numpy as np
import torch

from tasuki.engine.tiers.copy_job import CopyJob, Moves, Segment, layer_segments, slot_moves
from tasuki.engine.tiers.host_memory import pinned_passage
from tasuki.engine.tiers.store import Rows, TierSource, row_bytes
from tasuki.pycache.arena import Arena, PagePairs
from tasuki.pycache.layout import CacheLayout
from tasuki.utils.signatures import Work

from .moves import FIRST, LAST, RunMoves, batched_moves, recorded, settle, stream_of
from .word_digest import ArenaSums, add_rows, rows_of_segment, rows_of_state

_SEGMENT_BYTES = 256 << 20
"""Most bytes of one copy call, enough for a whole layer of most jobs. The host's work for a call
delays launches of layers behind a load, and steps during a write."""
_UNDER_WAY = 256 << 20
"""Limit of bytes in flight; the call exceeding it still begins. These bytes last some milliseconds,
so the PCIe link never waits for the host. With a whole load in flight, each launch of a layer
behind it would take longer. A cancelled load would also end late."""


@dataclass(frozen=True)
class Lane:
    """CUDA streams for one direction: `copies` for copies, `checks` for digests."""

    copies: torch.cuda.Stream
    checks: torch.cuda.Stream


@dataclass(frozen=True)
class _Call:
    """One copy call for several byte ranges. layers: number of layers complete after it. rows:
    range (first, end) of the job's digest rows. length: bytes copied."""

    layers: int
    moves: Moves
    rows: tuple[int, int]
    length: int


class GpuCopy:
    """A `RunningCopy` between a GPU's arena and pinned host memory, in either direction.

    Segments follow each other on one stream. The digest of each segment follows its copy on another
    stream.
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
        """ids: page ids and slot id in the GPU's arena. moved: source and target memory, uint8."""
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
        """Make the digest sums after the first copy call, on the stream of digests. For a long job
        the host needs a millisecond or two for their table, while the states are copied."""
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
        """Return the limit of bytes in flight. The first call, for the states, goes alone, so a
        computation behind the load can upload its input. Otherwise the upload would wait for all
        requested copies."""
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
    """Yield the job's segments in order, grouped into copy calls. The slot's segments share one."""
    end = 0
    for _, some in groupby(layer_segments(arena.layout, job, _SEGMENT_BYTES), _call_of):
        segments = list(some)
        first, end = end, end + sum(map(rows_of_segment, segments))
        moves = np.concatenate([segment.moves for segment in segments], axis=1)
        length = sum(segment.length for segment in segments)
        yield _Call(segments[-1].layers, moves, (first, end), length)


def _call_of(segment: Segment) -> tuple[int, int] | None:
    return None if segment.region is None else (segment.region, segment.pages[0])


class GpuCopies:
    """The `SegmentCopies` between a GPU's arena and pinned host memory below it.

    Thread rule: one thread; a load may go on while a write is in progress. Invariants:
    1. A digest covers the arena's bytes, computed by the GPU, for writes and for loads. So errors
       on the way down, in host memory or on the way up are found. The host reads no bytes. Pages
       being written down do not change, or the write is void. So digests may be computed before or
       after the copies.
    2. A layer is complete once its digests are computed too. So a computation behind a load may
       overwrite its first page and its slot.
    3. When settle() returns, all begun work has ended; otherwise it raises StillMoving.
    """

    def __init__(self, arena: Arena, below: Arena) -> None:
        """arena: the GPU's arena. below: the arena in host memory. REQUIRES: all of its memory is
        pinned, in regions of at least one slab."""
        self._arena = arena
        self._below = below
        self._device = arena.bytes.device
        # Steps go before digests, because a computation behind a load mostly waits for its copies.
        self._down, self._up = self._lane(LAST), self._lane(FIRST)
        self._run_moves = batched_moves()
        self._warm_up()

    def _lane(self, priority: int) -> Lane:
        """Make the CUDA streams of one direction. priority: priority of the copy stream."""
        return Lane(stream_of(self._device, priority), stream_of(self._device, LAST))

    def _warm_up(self) -> None:
        """Compile the digest kernel now, so no prompt's load waits for a compiler."""
        checks = self._down.checks
        with torch.cuda.stream(checks):
            rows = torch.from_numpy(rows_of_state(self._arena.layout, 0, 0, 8, 0))
            sums = torch.zeros(1, 2, dtype=torch.int64, device=self._device)
            add_rows(self._arena.bytes.view(torch.int64), rows.to(self._device), sums)
        checks.synchronize()

    def down(self, job: CopyJob) -> GpuCopy:
        """Return the running copy of a write. Its stream has the lowest priority."""
        # The current device belongs to a thread.
        torch.cuda.set_device(self._device)
        ids = [page for page, _ in job.pages], None if job.slot is None else job.slot[0]
        moved = self._arena.bytes, self._below.bytes
        return GpuCopy(self._arena, ids, moved, job, self._down, self._run_moves)

    def up(self, job: CopyJob) -> GpuCopy:
        torch.cuda.set_device(self._device)
        ids = [page for _, page in job.pages], None if job.slot is None else job.slot[1]
        moved = self._below.bytes, self._arena.bytes
        return GpuCopy(self._arena, ids, moved, job, self._up, self._run_moves)


_LOAD_SEGMENT_BYTES = 32 << 20
"""Bytes requested from a store at a time; each request needs several reads from the store."""
_PARTS = 2


class Passage:
    """A buffer of pinned memory for one segment on its way from a store to a GPU."""

    def __init__(self, size: int) -> None:
        """Allocate the pinned buffer of `size` bytes. Raises EngineConfigError."""
        self.memory = pinned_passage(size)
        self._left: torch.cuda.Event | None = None

    def rows(self, count: int, size: int) -> Rows:
        """Return `count` rows of the buffer for `size` bytes each. Wait first until the previous
        segment has reached the GPU's arena."""
        if self._left is not None:
            self._left.synchronize()
        length = row_bytes(size)
        found: Rows = self.memory.numpy()[: count * length].reshape(count, length)
        return found

    def leaves(self) -> None:
        """Mark the buffer as free after all work now in the current stream."""
        self._left = recorded()


@dataclass(frozen=True)
class _Way:
    """The path from a store to a GPU's arena. at_once: number of pages in a segment. passages: the
    pinned buffers in between."""

    store: TierSource
    arena: Arena
    at_once: int
    passages: Sequence[Passage]
    stream: torch.cuda.Stream
    run_moves: RunMoves


class GpuLoads:
    """The `StoreLoads` to a GPU's arena: loads from a store below host memory."""

    def __init__(self, arena: Arena, store: TierSource) -> None:
        """Allocate the pinned buffers. Raises EngineConfigError if there is no memory for them."""
        page, slot = row_bytes(arena.layout.page_bytes), row_bytes(arena.layout.slot_bytes)
        at_once = max(1, _LOAD_SEGMENT_BYTES // page)
        passages = [Passage(max(at_once * page, slot)) for _ in range(_PARTS)]
        stream = stream_of(arena.bytes.device, FIRST)
        self._way = _Way(store, arena, at_once, passages, stream, batched_moves())

    def up(self, job: CopyJob) -> "GpuLoad":
        # The current device belongs to a thread.
        torch.cuda.set_device(self._way.arena.bytes.device)
        return GpuLoad(self._way, job)


class GpuLoad:
    """A load from a store below host memory to a GPU's arena. It alternates between two buffers of
    pinned memory. While the GPU copies from one, the store fills the other.

    Thread rule: see `StoreLoads`. Invariants:
    1. A digest covers the arena's bytes, computed by the GPU after the whole load has arrived. The
       host reads none of them.
    2. A buffer is filled again only after its content has reached the arena.

    Implements `RunningCopy`. A store returns whole pages: no layer is complete before all are.
    """

    layers = 0

    def __init__(self, way: _Way, job: CopyJob) -> None:
        self._way = way
        self._passages = cycle(way.passages)
        self._left = self._segments(job)
        pages, slot = [page for _, page in job.pages], None if job.slot is None else job.slot[1]
        with torch.cuda.stream(way.stream):
            self._sums = ArenaSums(way.arena, pages, slot)

    def _segments(self, job: CopyJob) -> Iterator[Work[None]]:
        at_once = self._way.at_once
        for first in range(0, len(job.pages), at_once):
            yield partial(self._pages_up, job.pages[first : first + at_once])
        if job.slot is not None:
            yield partial(self._slot_up, job.slot)

    def advance(self) -> bool:
        segment = next(self._left, None)
        if segment is not None:
            segment()
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
    """Return the byte ranges to copy whole pages from buffer rows of `row` bytes to the arena: each
    page's blocks, region by region."""
    regions = np.arange(len(layout.regions))
    sources = np.arange(len(pages))[:, None] * row + regions * layout.block_bytes
    targets = np.array(pages)[:, None] * layout.block_bytes + regions * layout.region_stride
    lengths = np.full(sources.shape, layout.block_bytes)
    found: Moves = np.stack([part.ravel() for part in (sources, targets, lengths)])
    return found
