"""Which bytes a window is: (local offset, remote offset, length) pieces from the layout, runs
merged.

Knows layout and ids of both sides; nothing of peers, rooms or what the bytes mean. Pure functions.
Invariant: pieces are int64 [n, 3], since arenas are larger than 2 GiB.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tasuki.pycache.layout import CacheLayout
from tasuki.transfer.errors import OutOfBounds

from .unit_sizes import UnitSizes, state_bytes
from .window import WindowHeader

Pieces = NDArray[np.int64]


def page_offsets(layout: CacheLayout, layer: int, pages: Sequence[int]) -> NDArray[np.int64]:
    """Byte offset of each page in one layer that keeps pages, [pages] int64."""
    base = layout.page_span(layer, 0).offset
    return base + np.asarray(pages, dtype=np.int64) * layout.block_bytes


def window_pieces(
    layout: CacheLayout,
    header: WindowHeader,
    local_pages: Sequence[int],
    remote_pages: Sequence[int],
    local_slot: int | None,
    remote_slot: int | None,
) -> Pieces:
    """Pieces of every layer of the window, [n, 3] int64; n is 0 where it has nothing to send.

    REQUIRES: local_pages and remote_pages have header.pages ids each; a local_slot comes with a
    remote_slot.
    """
    parts: list[Pieces] = []
    # Pages of every layer make the same runs, so many bytes further on.
    runs: Pieces | None = None
    for layer in range(header.first_layer, header.end_layer):
        kind = layout.layer_kinds[layer]
        if kind.keeps_pages:
            if runs is None:
                runs = _page_runs(layout, local_pages, remote_pages)
            part = runs.copy()
            part[:, :2] += layout.page_span(layer, 0).offset
            parts.append(part)
        if kind.keeps_state and local_slot is not None and remote_slot is not None:
            span = layout.state_span(layer, local_slot)
            target = layout.state_span(layer, remote_slot)
            parts.append(np.array([[span.offset, target.offset, span.length]], dtype=np.int64))
    return np.concatenate(parts) if parts else np.empty((0, 3), dtype=np.int64)


def _page_runs(layout: CacheLayout, local: Sequence[int], remote: Sequence[int]) -> Pieces:
    """Of a layer whose page 0 lies at byte 0."""
    size = layout.block_bytes
    here = np.asarray(local, dtype=np.int64) * size
    there = np.asarray(remote, dtype=np.int64) * size
    return merge_runs(here, there, size)


def window_bytes(sizes: UnitSizes, header: WindowHeader) -> int:
    """What the pieces of the header's window come to."""
    return sum(
        layer_bytes(sizes, layer, header.pages, header.carries_state)
        for layer in range(header.first_layer, header.end_layer)
    )


def layer_bytes(sizes: UnitSizes, layer: int, pages: int, carries_state: bool) -> int:
    """What a forward has of one layer to send."""
    blocks = pages * sizes.block_bytes if sizes.layer_kinds[layer].keeps_pages else 0
    return blocks + (state_bytes(sizes, layer) if carries_state else 0)


def merge_runs(local: NDArray[np.int64], remote: NDArray[np.int64], length: int) -> Pieces:
    """Blocks of `length` bytes as pieces; neighbours that are contiguous on both sides become
    one."""
    if len(local) == 0:
        return np.empty((0, 3), dtype=np.int64)
    breaks = (local[1:] - local[:-1] != length) | (remote[1:] - remote[:-1] != length)
    inner = np.flatnonzero(breaks) + 1
    # Filled in place: each of numpy's helpers would cost as much as all of this.
    edges = np.empty(len(inner) + 2, dtype=np.int64)
    edges[0], edges[1:-1], edges[-1] = 0, inner, len(local)
    pieces = np.empty((len(inner) + 1, 3), dtype=np.int64)
    pieces[:, 0], pieces[:, 1] = local[edges[:-1]], remote[edges[:-1]]
    pieces[:, 2] = (edges[1:] - edges[:-1]) * length
    return pieces


def merge_pieces(pieces: Pieces) -> Pieces:
    """The same with neighbours that are contiguous on both sides as one, whatever their lengths."""
    if len(pieces) == 0:
        return pieces
    ends = pieces[:-1, :2] + pieces[:-1, 2:]
    starts = np.concatenate([[0], np.flatnonzero((pieces[1:, :2] != ends).any(axis=1)) + 1])
    merged: Pieces = pieces[starts]
    merged[:, 2] = np.add.reduceat(pieces[:, 2], starts)
    return merged


def check_bounds(pieces: Pieces, local_size: int, remote_size: int) -> None:
    """Raises OutOfBounds naming the first piece that leaves either side's registered bytes."""
    if len(pieces) == 0 or _inside(pieces, local_size, remote_size):
        return
    length = pieces[:, 2]
    for side, column, size in (("local", 0, local_size), ("remote", 1, remote_size)):
        offset = pieces[:, column]
        # Not offset + length > size: near 2^63 that sum wraps around.
        bad = np.flatnonzero(
            (offset < 0) | (length < 1) | (length > size) | (offset > size - length)
        )
        if len(bad):
            index = int(bad[0])
            raise OutOfBounds(
                f"piece {index}: {side} bytes at {int(offset[index])} of length "
                f"{int(length[index])} are outside the {size} registered"
            )


def _inside(pieces: Pieces, local_size: int, remote_size: int) -> bool:
    """Whether all of them are, in as few passes as it takes: this stands before every post."""
    local, remote, length = pieces[:, 0], pieces[:, 1], pieces[:, 2]
    if int(pieces.min()) < 0 or int(length.min()) < 1:
        return False
    # Both offsets are not negative, so that no difference leaves int64.
    return bool((local <= local_size - length).all()) and bool(
        (remote <= remote_size - length).all()
    )
