"""Segments and digest rows of layer chunks by numpy: the reference of the compiled ones."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tasuki.pycache.layout import CacheLayout
from tasuki.transfer.chunks.chunk import ChunkHeader
from tasuki.transfer.chunks.descriptors import Segments, UnitSizes
from tasuki.transfer.chunks.digest import ChunkRows, layer_parts, splitmix64, splitmix64_all

_NOTHING = np.empty(0, dtype=np.int64)
_WORD = 8


def chunk_segments(
    layout: CacheLayout,
    header: ChunkHeader,
    local_pages: Sequence[int],
    remote_pages: Sequence[int],
    local_slot: int | None,
    remote_slot: int | None,
) -> Segments:
    """Return the segments (local offset, remote offset, length) of a layer chunk in bytes, with
    contiguous ones merged.

    The result is [n, 3] int64, because arenas are larger than 2 GiB. It covers every layer of the
    chunk; n is 0 if there is nothing to send. Knows the layout and the ids of both sides, but no
    peers, transfers or meaning of the bytes. Pure. REQUIRES: local_pages and remote_pages have
    header.pages ids each; a local_slot comes with a remote_slot.
    """
    parts: list[Segments] = []
    # Pages of every layer make the same runs, at a constant distance.
    runs: Segments | None = None
    for layer in range(header.first_layer, header.end_layer):
        cache = layout.layers[layer]
        if cache.page:
            if runs is None:
                runs = _page_runs(layout, local_pages, remote_pages)
            part = runs.copy()
            part[:, :2] += layout.page_span(layer, 0).offset
            parts.append(part)
        if cache.slot and local_slot is not None and remote_slot is not None:
            span = layout.state_span(layer, local_slot)
            target = layout.state_span(layer, remote_slot)
            parts.append(np.array([[span.offset, target.offset, span.length]], dtype=np.int64))
    return np.concatenate(parts) if parts else np.empty((0, 3), dtype=np.int64)


def _page_runs(layout: CacheLayout, local: Sequence[int], remote: Sequence[int]) -> Segments:
    """Return the segments of the pages in one layer, as if page 0 of the layer were at byte 0."""
    size = layout.block_bytes
    here = np.asarray(local, dtype=np.int64) * size
    there = np.asarray(remote, dtype=np.int64) * size
    return merge_runs(here, there, size)


def merge_runs(local: NDArray[np.int64], remote: NDArray[np.int64], length: int) -> Segments:
    """Return blocks of `length` bytes as segments; neighbours contiguous in both arenas become one.
    local, remote: offset of each block in either arena."""
    if len(local) == 0:
        return np.empty((0, 3), dtype=np.int64)
    breaks = (local[1:] - local[:-1] != length) | (remote[1:] - remote[:-1] != length)
    inner = np.flatnonzero(breaks) + 1
    # Filled in place, because each of numpy's helpers would cost as much as all of this.
    edges = np.empty(len(inner) + 2, dtype=np.int64)
    edges[0], edges[1:-1], edges[-1] = 0, inner, len(local)
    segments = np.empty((len(inner) + 1, 3), dtype=np.int64)
    segments[:, 0], segments[:, 1] = local[edges[:-1]], remote[edges[:-1]]
    segments[:, 2] = (edges[1:] - edges[:-1]) * length
    return segments


def row_table(chunks: Sequence[ChunkRows]) -> NDArray[np.int64]:
    """Return the rows of all chunks as one table [5, columns] int64, equal to `WindowGeometry.rows`
    of the same chunks.

    The five lines are the rows' offsets, lengths, seeds and chunk numbers, then zeros to add the
    digests to, at least one for each chunk. The number of columns is even, because a GPU's kernel
    is compiled anew for lines not aligned to 16 bytes.
    """
    count = sum(len(chunk.offsets) for chunk in chunks)
    columns = max(count, len(chunks))
    table = np.zeros((5, columns + columns % 2), dtype=np.int64)
    first = 0
    for number, rows in enumerate(chunks):
        end = first + len(rows.offsets)
        table[:3, first:end] = rows.offsets, rows.lengths, rows.seeds
        table[3, first:end] = number
        first = end
    return table


def rows_by_numpy(
    layout: CacheLayout,
    transfer_id: int,
    generation: int,
    header: ChunkHeader,
    pages: Sequence[int],
    slot: int | None,
    sizes: UnitSizes | None = None,
) -> ChunkRows:
    """Return the rows of one layer chunk, to be summed for its digest. pages, slot: ids in the
    arena. sizes: bytes of each unit on the wire, counted from the unit's beginning; None: whole
    units. REQUIRES: ids are inside the arena; slot is given exactly if header.carries_state."""
    lengths = layout if sizes is None else sizes
    rows: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint64]]] = []
    identity = splitmix64(splitmix64(transfer_id) ^ generation)
    places = np.arange(header.first_page, header.first_page + len(pages), dtype=np.uint64)
    for layer in range(header.first_layer, header.end_layer):
        seed = np.uint64(splitmix64(identity ^ layer))
        of_page, of_slot = layer_parts(layout, layer, lengths)
        if of_page:
            begins, words, keys = np.array(of_page, dtype=np.int64).T
            # A page's parts are neighbours, as they are in a staged copy of it.
            own = np.asarray(pages, dtype=np.int64)[:, None] * (layout.block_bytes // _WORD)
            seeds = splitmix64_all(seed ^ places[:, None] ^ keys.astype(np.uint64))
            shape = (len(pages), len(words))
            rows.append(((own + begins).ravel(), np.broadcast_to(words, shape).ravel(), seeds))
        if of_slot and slot is not None:
            begins, words, keys = np.array(of_slot, dtype=np.int64).T
            begins = begins + slot * (layout.slab_bytes // _WORD)
            rows.append((begins, words, splitmix64_all(seed ^ keys.astype(np.uint64))))
    return ChunkRows(
        np.concatenate([_NOTHING, *(offsets for offsets, _, _ in rows)]),
        np.concatenate([_NOTHING, *(words for _, words, _ in rows)]),
        np.concatenate([_NOTHING, *(seeds.ravel().view(np.int64) for _, _, seeds in rows)]),
    )
