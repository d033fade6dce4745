"""Cases of digesting a prefill's transfer: pages of every full-attention layer, and the recurrent
state of all GDN layers at its end."""

from collections.abc import Iterator
from functools import partial

import numpy as np
import torch

from tasuki.transfer.chunks.chunk import ChunkHeader
from tasuki.transfer.chunks.digest import ArenaChunk, chunk_geometry, word_keys
from tasuki.transfer.chunks.digest_kernel import GpuChunkDigester, PlacedRows, digest_rows

from .case import Case, Stage, turns_to_overflow

_LEAST_RATE = 1e12
_ROOM, _GENERATION = 1, 1


def cases(stage: Stage) -> Iterator[Case]:
    for pages, carries_state in ((128, False), (128, True), (782, True)):
        yield _chunk(stage, pages, carries_state)


def _chunk(stage: Stage, pages: int, carries_state: bool) -> Case:
    layout, arena = stage.arena.layout, stage.arena
    moved = pages * layout.page_bytes + carries_state * layout.slot_bytes
    words = arena.bytes.view(torch.int64)
    most = layout.longest_row // 8
    keys = torch.from_numpy(word_keys(most).view(np.int64)).to(stage.device)
    layers = len(layout.layers)
    header = ChunkHeader(0, 0, layers, 0, pages, carries_state)
    geometry = chunk_geometry(layout)
    chunks = []
    for turn in range(turns_to_overflow(moved)):
        ids = stage.page_ids(pages, first=turn * pages).tolist()
        # Slots after the pages, so no byte is in a layer chunk twice.
        slot = stage.slabs - 1 - turn if carries_state else None
        chunks.append((ids, slot))
    placed = [
        PlacedRows.on(stage.device, *geometry.rows([(_ROOM, _GENERATION, 0, layers, 0, *chunk)]))
        for chunk in chunks
    ]
    digester = GpuChunkDigester(arena.bytes, layout)
    pages_of_first, slot_of_first = chunks[0]
    first = ArenaChunk(_ROOM, _GENERATION, header, tuple(pages_of_first), slot_of_first)
    state = "with" if carries_state else "without"
    return Case(
        f"digest of {pages} pages, all layers, {state} state",
        [partial(digest_rows, words, keys, rows) for rows in placed],
        bytes=moved,
        eager={
            "as called": partial(digester.digest_all, [first]),
        },
        rate=_LEAST_RATE,
    )
