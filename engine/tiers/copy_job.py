"""A copy of pages and a state between two places, as plain data. Its segments are in layer order; a
barrier lets computations wait for each layer."""

import threading
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray

from tasuki.pycache._cpp_cache import TierLoad, TierWrite
from tasuki.pycache.arena import PagePairs
from tasuki.pycache.layout import BlockRegion, CacheLayout


class LoadBarrier:
    """The layer barrier of one load: a computation started before the load's end waits here for
    each layer's data.

    Thread rule: the copying thread opens it, one thread waits, any thread closes it. Invariants:
    layer l is open once all of its loaded data is in the arena. The data is verified only at the
    load's end, so earlier results do not count until then. No wait lasts for ever: the load
    completes, or its owner gives it up as late and closes the barrier.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._layers = 0
        self._closed = False

    def arrived(self, layers: int) -> None:
        """Open the first `layers` layers, because their data is in the arena. Open layers never
        close again."""
        with self._changed:
            if layers > self._layers:
                self._layers = layers
                self._changed.notify_all()

    def wait(self, layer: int) -> bool:
        """Block until the layer is open. Return False if the barrier was closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or layer < self._layers)
            return not self._closed

    def close(self) -> None:
        """Close the barrier: every wait returns False from now on, even for open layers.
        Idempotent."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class Direction(Enum):
    DOWN = "written"
    """A copy from the arena, or from the tier above, to a tier."""
    UP = "loaded"
    """A copy from a tier to the arena."""


class JobEnd(Enum):
    DONE = "done"
    CANCELLED = "cancelled"
    """The copy was cancelled by request, or because the tier closes."""
    MISMATCH = "mismatch"
    """The loaded bytes differ from the written bytes."""
    BROKEN = "broken"
    """The copy raised an exception, or was queued behind a copy without an end."""


@dataclass(frozen=True, eq=False)
class WriteLabel:
    """The tokens of the pages and the state in a write. start: number of the prompt's tokens before
    the first written one. above: the tier's page id for the tokens ending at `start`; None at the
    prompt's start. kind: reason for keeping the state."""

    salt: bytes
    start: int
    above: int | None
    tokens: NDArray[np.int32]
    kind: str


@dataclass(frozen=True)
class CopyJob:
    """A copy between two places as plain data.

    transfer: number of the copy in the prefix tree. pages, slot: (source id, target id) pairs. slot
    is None if another tier has the load's state. label: the tokens of a write to a tier kept after
    its node's end, else None. barrier: the layer barrier of a load with a computation behind it,
    else None.
    """

    transfer: int
    direction: Direction
    pages: tuple[tuple[int, int], ...]
    slot: tuple[int, int] | None
    label: WriteLabel | None = None
    barrier: LoadBarrier | None = None

    @staticmethod
    def of_write(write: TierWrite, label: WriteLabel | None = None) -> "CopyJob":
        return CopyJob(write.id, Direction.DOWN, tuple(write.pages), write.slot, label)


def parts_of_load(load: TierLoad, barrier: LoadBarrier | None) -> dict[int, CopyJob]:
    """Return the load's copy job for each tier with a part of it, by tier number. barrier: the
    load's layer barrier, used if a single tier has all parts; None if nothing waits behind it."""
    pages: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for tier, source, target in load.pages:
        pages[tier].append((source, target))
    from_tier, source, target = load.state
    is_whole = set(pages) <= {from_tier}
    return {
        tier: CopyJob(
            load.id,
            Direction.UP,
            tuple(pages[tier]),
            (source, target) if tier == from_tier else None,
            barrier=barrier if is_whole else None,
        )
        for tier in sorted({*pages, from_tier})
    }


Moves = NDArray[np.int64]
"""Copies of byte ranges, int64 [3, n]: first source byte in one arena, first target byte in
another, number of bytes."""
Runs = NDArray[np.int64]
"""Copies of page ranges, int64 [3, n]: first source page, first target page, number of pages. Pages
of a range are neighbours within one slab (a fixed-size part of the arena), at source and target."""


@dataclass(frozen=True)
class Segment:
    """A segment of a copy. Segments follow the order of computation by layers, so a computation
    behind a load begins with its first layers.

    Pure. Invariant: the segments of a job move each byte of its pages and of its slot once. The
    slot's segments come first; together they are no longer than the pages of one layer. So layers
    reading only states are computed while the pages of the next layer arrive. Bytes of a page go in
    the order of its regions, and bytes of the slot from the first on. Digests use the same order.

    layers: number of layers complete after this segment. region: the memory region of the segment's
    page blocks; None for a segment of the slot. pages: range (first, end) of the job's pages.
    """

    layers: int
    moves: Moves
    region: int | None = None
    pages: tuple[int, int] = (0, 0)

    @property
    def length(self) -> int:
        """Return the segment's length in bytes."""
        return int(self.moves[2].sum())


@dataclass(frozen=True)
class _Part:
    """A range of the job's pages, copied together: pages [first, end), with their ranges."""

    first: int
    end: int
    runs: Runs


def layer_segments(layout: CacheLayout, job: CopyJob, most: int) -> Iterator[Segment]:
    """Yield the job's segments, each of at most `most` bytes or of one page's block. Layers without
    data in the job count as complete together with the layers before them."""
    at_once = max(1, most // layout.block_bytes)
    parts = []
    for first in range(0, len(job.pages), at_once):
        end = min(first + at_once, len(job.pages))
        parts.append(_Part(first, end, page_runs(layout, job.pages[first:end])))
    layers = len(layout.layers)
    states, pages = _states(layout, job), _pages(layout, parts)
    # A state's segment completes at most the layers before the first one with pages to come.
    first_pages = layout.regions[0].layer if parts else layers
    held: Segment | None = None
    for segment in chain(states, pages):
        if held is not None:
            behind = segment.layers if held.region is not None else min(segment.layers, first_pages)
            yield replace(held, layers=behind)
        held = segment
    if held is not None:
        yield replace(held, layers=layers)


def _states(layout: CacheLayout, job: CopyJob) -> Iterator[Segment]:
    """Yield the slot's segments, one per layer with a state. Their `layers` is provisional: the
    index of the segment's own layer."""
    for layer, cache in enumerate(layout.layers):
        if cache.slot and job.slot is not None:
            span = layout.state_span(layer, 0)
            yield Segment(layer, slot_moves(layout, job.slot, span.offset, span.length))


def _pages(layout: CacheLayout, parts: list[_Part]) -> Iterator[Segment]:
    """Yield the segments of the pages, with a provisional `layers`: the segment's own layer."""
    for region in layout.regions:
        for part in parts:
            moves = region_moves(layout, region, part.runs)
            yield Segment(region.layer, moves, region.index, (part.first, part.end))


def page_runs(layout: CacheLayout, pages: PagePairs) -> Runs:
    """Return the ranges of neighbouring pages in (source page, target page) pairs. No range crosses
    a slab."""
    pairs = np.asarray(pages, dtype=np.int64).reshape(-1, 2).T
    slabs = pairs // layout.blocks_per_slab
    parts = (np.diff(pairs) != 1) | (np.diff(slabs) != 0)
    starts = np.flatnonzero(np.concatenate([[True], parts.any(axis=0)]))
    counts = np.diff(np.append(starts, len(pages)))
    return np.stack([*pairs[:, starts], counts])


def region_moves(layout: CacheLayout, region: BlockRegion, runs: Runs) -> Moves:
    """Return the byte ranges of the pages' blocks in one region, from ranges of pages."""
    first = np.array([[region.index * layout.region_stride]] * 2 + [[0]])
    moves: Moves = runs * layout.block_bytes + first
    return moves


def slot_moves(layout: CacheLayout, slot: tuple[int, int], offset: int, length: int) -> Moves:
    """Return the byte range of a slot's `length` bytes from `offset` on. slot: (source, target)."""
    source, target = (number * layout.slab_bytes + offset for number in slot)
    return np.array([[source], [target], [length]])


def run_moves(source: torch.Tensor, target: torch.Tensor, moves: Moves) -> None:
    """Copy byte ranges between two arenas. Copies between host arenas are complete on return;
    others join the current CUDA stream. The interpreter lock is free while bytes move."""
    for first, to, length in moves.T.tolist():
        wanted = target[to : to + length]
        wanted.copy_(source[first : first + length], non_blocking=True)
