"""Copies inside the arena: fork and snapshot of state slots over all layers, in one launch."""

from collections.abc import Iterator
from functools import partial

from ...pycache.kernels.slots import copy_pages, copy_slots, zero_slots
from .case import Case
from .stage import Stage, turns_to_overflow

_PAGES = 256


def cases(stage: Stage) -> Iterator[Case]:
    layout = stage.arena.layout
    for count in (1, 4, 16, 64):
        if 2 * count > stage.slabs:
            return
        turns = min(turns_to_overflow(2 * count * layout.slot_bytes), stage.slabs // (2 * count))
        rows = stage.rows(count)
        pairs = [
            stage.ints([[2 * (turn * count + i), 2 * (turn * count + i) + 1] for i in range(count)])
            for turn in range(turns)
        ]
        yield Case(
            f"copy {count} slots over all layers",
            [partial(copy_slots, stage.arena, pair, rows) for pair in pairs],
            bytes=2 * count * layout.slot_bytes,
            share=0.85,
        )
        yield Case(
            f"zero {count} slots over all layers",
            [partial(zero_slots, stage.arena, pair[:, 1].contiguous(), rows) for pair in pairs],
            bytes=count * layout.slot_bytes,
        )
    yield Case(
        f"copy {_PAGES} pages over all layers",
        [
            partial(
                copy_pages, stage.arena, stage.page_ids(2 * _PAGES).view(-1, 2), stage.rows(_PAGES)
            )
        ],
        bytes=2 * _PAGES * layout.page_bytes,
    )
