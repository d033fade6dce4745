"""A load as pieces in the order in which layers compute, so that whoever computes behind it begins
at its first layers.

Pure. Invariant: the pieces of a job move each byte of its pages and of its slot once, those of
layer l before those of layer l + 1; what a page has goes in the order of its regions and the slot's
bytes from the first on, which is the order that digests take.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from tasuki.pycache.layout import BlockRegion, CacheLayout
from tasuki.pycache.place_copies import PagePairs

from .copy_job import CopyJob


@dataclass(frozen=True)
class Move:
    """`length` bytes from `source` of one arena to `target` of another."""

    source: int
    target: int
    length: int


@dataclass(frozen=True)
class Piece:
    """layers: of which all has been moved once this piece was. region, pages: whose block of which
    of the job's pages (first, end) it has; None: it is of the slot."""

    layers: int
    moves: tuple[Move, ...]
    region: int | None = None
    pages: tuple[int, int] = (0, 0)

    @property
    def length(self) -> int:
        """Bytes."""
        return sum(move.length for move in self.moves)


def layer_pieces(layout: CacheLayout, job: CopyJob, most: int) -> Iterator[Piece]:
    """Of at most so many bytes each, or one page's block. Layers of which the job brings nothing
    are there with those before."""
    by_layer = [
        (layer, found)
        for layer in range(len(layout.layer_kinds))
        if (found := list(_pieces_of(layout, layer, job, most)))
    ]
    ends = [layer for layer, _ in by_layer[1:]] + [len(layout.layer_kinds)]
    for (_, found), end in zip(by_layer, ends, strict=True):
        yield from found[:-1]
        yield replace(found[-1], layers=end)


def _pieces_of(layout: CacheLayout, layer: int, job: CopyJob, most: int) -> Iterator[Piece]:
    """As long as others of the layer are to come."""
    kind, at_once = layout.layer_kinds[layer], max(1, most // layout.block_bytes)
    if kind.keeps_state and job.slot is not None:
        span = layout.state_span(layer, 0)
        source, target = (number * layout.slab_bytes + span.offset for number in job.slot)
        yield Piece(layer, (Move(source, target, span.length),))
    if not kind.keeps_pages:
        return
    region = layout.regions[layout.kind_index(layer)]
    for first in range(0, len(job.pages), at_once):
        end = min(first + at_once, len(job.pages))
        moves = tuple(region_moves(layout, region, job.pages[first:end]))
        yield Piece(layer, moves, region.index, (first, end))


def region_moves(layout: CacheLayout, region: BlockRegion, pages: PagePairs) -> Iterator[Move]:
    """Of what a region has of these pages: those that are neighbours in a slab on both sides go
    together, and none crosses a slab."""
    block, first = layout.block_bytes, region.index * layout.region_stride
    for source, target, count in _runs(pages, layout.blocks_per_slab):
        yield Move(first + source * block, first + target * block, count * block)


def _runs(pages: PagePairs, slab: int) -> Iterator[tuple[int, int, int]]:
    """(source, target, count)."""
    begun: tuple[int, int, int] | None = None
    for source, target in pages:
        if begun is not None:
            first, to, count = begun
            follows = (source, target) == (first + count, to + count)
            if follows and source // slab == first // slab and target // slab == to // slab:
                begun = first, to, count + 1
                continue
            yield begun
        begun = source, target, 1
    if begun is not None:
        yield begun


def run_moves(source: torch.Tensor, target: torch.Tensor, moves: Sequence[Move]) -> None:
    """source, target: bytes of two arenas. On the host they are done on return; else they join the
    current stream. Holds no interpreter's lock while bytes move."""
    for move in moves:
        wanted = target[move.target : move.target + move.length]
        wanted.copy_(source[move.source : move.source + move.length], non_blocking=True)
