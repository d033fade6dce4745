"""One copy between two places as plain data, its pieces by layer, and who waits for them.

Plain values, but for LoadBarrier. Thread rule: one thread copies and opens a barrier, one waits,
any closes it.
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
    """The layer barrier of one load: who computes behind it waits here for what a layer reads.

    Thread rule: the thread that copies opens it, one thread waits, any thread closes it.
    Invariants:
    layer l is open once all that the load brings of it has been copied to the arena; that it is
    what was written shows only at the load's end, so what was computed behind it counts for nothing
    before that. Whoever waits is let go: the load lands, or whoever began it gives it up as late,
    and closes this.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._layers = 0
        self._closed = False

    def landed(self, layers: int) -> None:
        """So many, from the first on."""
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
        """Let nobody through any more, whatever has landed. Idempotent."""
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
    """Asked for, or the tier closes."""
    MISMATCH = "mismatch"
    """What landed is not what was written."""
    BROKEN = "broken"
    """The copy raised, or would stand behind one that does not end."""


@dataclass(frozen=True, eq=False)
class WriteLabel:
    """What a write brings, by its tokens. start: tokens before them; above: the tier's page that
    ends there; kind: the state's."""

    salt: bytes
    start: int
    above: int | None
    tokens: NDArray[np.int32]
    kind: str


@dataclass(frozen=True)
class CopyJob:
    """A copy between two places as plain data, and how it ended.

    transfer: the tree's number of it. pages, slot: (source, target), ids of their places; slot is
    None where another tier has the load's state. label: of a write to a tier that outlives its
    node. barrier: of a load that somebody may compute behind.
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
    """What each tier brings of it, by tier. barrier: opened by the part of a load that has but
    one; None: nobody waits there."""
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
"""[3, n]: from which byte of one arena, to which of another, and how many bytes are moved."""
Runs = NDArray[np.int64]
"""[3, n]: source, target, count of pages that are neighbours in a slab on both sides."""


@dataclass(frozen=True)
class Piece:
    """A load as pieces in the order in which layers compute, so that whoever computes behind it
    begins at its first layers.

    Pure. Invariant: the pieces of a job move each byte of its pages and of its slot once: the slot
    first, all of which is as long as the pages of one layer are or shorter, so that layers that
    read states alone are computed while the pages of the next one land. What a page has goes in the
    order of its regions and the slot's bytes from the first on, which is the order that digests
    take.

    layers: of which all has been moved once this piece was. region, pages: whose block of which of
    the job's pages (first, end) it has; None: it is of the slot.
    """

    layers: int
    moves: Moves
    region: int | None = None
    pages: tuple[int, int] = (0, 0)

    @property
    def length(self) -> int:
        """Bytes."""
        return int(self.moves[2].sum())


@dataclass(frozen=True)
class _Part:
    """Of the job's pages."""

    first: int
    end: int
    runs: Runs


def layer_pieces(layout: CacheLayout, job: CopyJob, most: int) -> Iterator[Piece]:
    """Of at most so many bytes each, or one page's block. Layers of which the job brings nothing
    are there with those before."""
    at_once = max(1, most // layout.block_bytes)
    parts = []
    for first in range(0, len(job.pages), at_once):
        end = min(first + at_once, len(job.pages))
        parts.append(_Part(first, end, page_runs(layout, job.pages[first:end])))
    layers = len(layout.layer_kinds)
    states, pages = _states(layout, job), _pages(layout, parts)
    # Where states stand, all layers before the first that has pages to come are there.
    paged = (layer for layer, kind in enumerate(layout.layer_kinds) if kind.keeps_pages)
    first_pages = next(paged, layers) if parts else layers
    held: Piece | None = None
    for piece in chain(states, pages):
        if held is not None:
            behind = piece.layers if held.region is not None else min(piece.layers, first_pages)
            yield replace(held, layers=behind)
        held = piece
    if held is not None:
        yield replace(held, layers=layers)


def _states(layout: CacheLayout, job: CopyJob) -> Iterator[Piece]:
    """Each as if nothing behind it were to come."""
    for layer, kind in enumerate(layout.layer_kinds):
        if kind.keeps_state and job.slot is not None:
            span = layout.state_span(layer, 0)
            yield Piece(layer, slot_moves(layout, job.slot, span.offset, span.length))


def _pages(layout: CacheLayout, parts: list[_Part]) -> Iterator[Piece]:
    """As _states()."""
    for layer, kind in enumerate(layout.layer_kinds):
        if kind.keeps_pages:
            region = layout.regions[layout.kind_index(layer)]
            for part in parts:
                moves = region_moves(layout, region, part.runs)
                yield Piece(layer, moves, region.index, (part.first, part.end))


def page_runs(layout: CacheLayout, pages: PagePairs) -> Runs:
    """None crosses a slab."""
    pairs = np.asarray(pages, dtype=np.int64).reshape(-1, 2).T
    slabs = pairs // layout.blocks_per_slab
    parts = (np.diff(pairs) != 1) | (np.diff(slabs) != 0)
    starts = np.flatnonzero(np.concatenate([[True], parts.any(axis=0)]))
    counts = np.diff(np.append(starts, len(pages)))
    return np.stack([*pairs[:, starts], counts])


def region_moves(layout: CacheLayout, region: BlockRegion, runs: Runs) -> Moves:
    """Of what a region has of the pages."""
    first = np.array([[region.index * layout.region_stride]] * 2 + [[0]])
    moves: Moves = runs * layout.block_bytes + first
    return moves


def slot_moves(layout: CacheLayout, slot: tuple[int, int], offset: int, length: int) -> Moves:
    """Of `length` bytes of the slot from `offset` on."""
    source, target = (number * layout.slab_bytes + offset for number in slot)
    return np.array([[source], [target], [length]])


def run_moves(source: torch.Tensor, target: torch.Tensor, moves: Moves) -> None:
    """source, target: bytes of two arenas. On the host they are done on return; else they join the
    current stream. Holds no interpreter's lock while bytes move."""
    for first, to, length in moves.T.tolist():
        wanted = target[to : to + length]
        wanted.copy_(source[first : first + length], non_blocking=True)
