"""One copy between two places as plain data, its segments by layer, and the barrier behind it.

Plain values, except LoadBarrier. Thread rule: one thread copies and opens a barrier, one waits, any
thread closes it.
"""

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
    """The layer barrier of one load: a computation behind the load waits here for each layer's
    data.

    Thread rule: the copying thread opens it, one thread waits, any thread closes it. Invariants:
    layer l is open once all of its loaded data is in the arena. The data is verified only at the
    load's end, so results computed behind it do not count before. No wait lasts for ever: the load
    completes, or its owner gives it up as late and closes the barrier.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._layers = 0
        self._closed = False

    def arrived(self, layers: int) -> None:
        """Open the first `layers` layers."""
        with self._changed:
            if layers > self._layers:
                self._layers = layers
                self._changed.notify_all()

    def wait(self, layer: int) -> bool:
        """Block until the layer is open; False if it never will be."""
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
    """From the arena, or from the tier above."""
    UP = "loaded"
    """To the arena."""


class JobEnd(Enum):
    DONE = "done"
    CANCELLED = "cancelled"
    """By request, or because the tier closes."""
    MISMATCH = "mismatch"
    """The loaded bytes differ from the written bytes."""
    BROKEN = "broken"
    """The copy raised, or would have to wait behind a copy without an end."""


@dataclass(frozen=True, eq=False)
class WriteLabel:
    """The tokens of a write. start: number of tokens before them. above: the tier's page before
    them, ending at `start`. kind: the state's kind."""

    salt: bytes
    start: int
    above: int | None
    tokens: NDArray[np.int32]
    kind: str


@dataclass(frozen=True)
class CopyJob:
    """A copy between two places as plain data.

    transfer: its number in the tree. pages, slot: (source, target) ids. slot is None if another
    tier has the load's state. label: for a write to a tier kept after its node's end. barrier: for
    a load with a computation behind it.
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
    """Return the part of the load from each tier. barrier: opened by the part, if there is only
    one. None: no computation waits behind the load."""
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
"""[3, n]: source byte in one arena, target byte in another, number of bytes to move."""
Runs = NDArray[np.int64]
"""[3, n]: source, target, count of pages. They are neighbours in a slab on both sides."""


@dataclass(frozen=True)
class Segment:
    """A segment of a load. Segments follow the order of computation by layers, so a computation
    behind the load begins with its first layers.

    Pure. Invariant: the segments of a job move each byte of its pages and of its slot once. The
    slot comes first. All of it is no longer than the pages of one layer. So layers that read only
    states are computed while the pages of the next layer arrive. Bytes of a page go in the order of
    its regions, and bytes of the slot from the first on. Digests use the same order.

    layers: number of layers complete after this segment. region, pages: the segment has this
    region's block of the job's pages (first, end). None: it belongs to the slot.
    """

    layers: int
    moves: Moves
    region: int | None = None
    pages: tuple[int, int] = (0, 0)

    @property
    def length(self) -> int:
        """Return the length in bytes."""
        return int(self.moves[2].sum())


@dataclass(frozen=True)
class _Part:
    """A part of the job's pages."""

    first: int
    end: int
    runs: Runs


def layer_segments(layout: CacheLayout, job: CopyJob, most: int) -> Iterator[Segment]:
    """Yield segments of at most `most` bytes each, or one page's block. Layers without data in the
    job are complete together with the layers before them."""
    at_once = max(1, most // layout.block_bytes)
    parts = []
    for first in range(0, len(job.pages), at_once):
        end = min(first + at_once, len(job.pages))
        parts.append(_Part(first, end, page_runs(layout, job.pages[first:end])))
    layers = len(layout.layer_kinds)
    states, pages = _states(layout, job), _pages(layout, parts)
    # A state's segment completes at most the layers before the first one with pages to come.
    paged = (layer for layer, kind in enumerate(layout.layer_kinds) if kind.keeps_pages)
    first_pages = next(paged, layers) if parts else layers
    held: Segment | None = None
    for segment in chain(states, pages):
        if held is not None:
            behind = segment.layers if held.region is not None else min(segment.layers, first_pages)
            yield replace(held, layers=behind)
        held = segment
    if held is not None:
        yield replace(held, layers=layers)


def _states(layout: CacheLayout, job: CopyJob) -> Iterator[Segment]:
    """Yield the slot's segments. `layers` is provisional: the number of layers before the segment's
    own."""
    for layer, kind in enumerate(layout.layer_kinds):
        if kind.keeps_state and job.slot is not None:
            span = layout.state_span(layer, 0)
            yield Segment(layer, slot_moves(layout, job.slot, span.offset, span.length))


def _pages(layout: CacheLayout, parts: list[_Part]) -> Iterator[Segment]:
    """Yield the segments of pages, with `layers` as in _states()."""
    for layer, kind in enumerate(layout.layer_kinds):
        if kind.keeps_pages:
            region = layout.regions[layout.kind_index(layer)]
            for part in parts:
                moves = region_moves(layout, region, part.runs)
                yield Segment(layer, moves, region.index, (part.first, part.end))


def page_runs(layout: CacheLayout, pages: PagePairs) -> Runs:
    """Return the runs of neighbouring pages. No run crosses a slab."""
    pairs = np.asarray(pages, dtype=np.int64).reshape(-1, 2).T
    slabs = pairs // layout.blocks_per_slab
    parts = (np.diff(pairs) != 1) | (np.diff(slabs) != 0)
    starts = np.flatnonzero(np.concatenate([[True], parts.any(axis=0)]))
    counts = np.diff(np.append(starts, len(pages)))
    return np.stack([*pairs[:, starts], counts])


def region_moves(layout: CacheLayout, region: BlockRegion, runs: Runs) -> Moves:
    """Return the moves of the pages' blocks in one region."""
    first = np.array([[region.index * layout.region_stride]] * 2 + [[0]])
    moves: Moves = runs * layout.block_bytes + first
    return moves


def slot_moves(layout: CacheLayout, slot: tuple[int, int], offset: int, length: int) -> Moves:
    """Return the move of `length` bytes of the slot from `offset` on."""
    source, target = (number * layout.slab_bytes + offset for number in slot)
    return np.array([[source], [target], [length]])


def run_moves(source: torch.Tensor, target: torch.Tensor, moves: Moves) -> None:
    """Copy bytes between two arenas. On the host the moves are done on return; otherwise they join
    the current stream. Holds no interpreter lock while bytes move."""
    for first, to, length in moves.T.tolist():
        wanted = target[to : to + length]
        wanted.copy_(source[first : first + length], non_blocking=True)
