"""Cases of the cache's copies inside the arena: forks and snapshots of state slots, zeroed slots,
and copies of pages."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from tasuki.pycache.arena import Arena, copy_page, copy_slot, zero_slot

from .case import Case, Stage, turns_to_overflow

_PAGES = 16


def cases(stage: Stage) -> Iterator[Case]:
    layout = stage.arena.layout
    for count in (1, 4, 16):
        if 2 * count > stage.slabs:
            return
        turns = min(turns_to_overflow(2 * count * layout.slot_bytes), stage.slabs // (2 * count))
        pairs = [
            [(2 * (turn * count + i), 2 * (turn * count + i) + 1) for i in range(count)]
            for turn in range(turns)
        ]
        yield Case(
            f"copy {count} slots over all layers",
            [partial(_copy_all, copy_slot, stage.arena, turn) for turn in pairs],
            bytes=2 * count * layout.slot_bytes,
            share=0.85,
        )
        yield Case(
            f"zero {count} slots over all layers",
            [partial(_zero_all, stage.arena, [slot for _, slot in turn]) for turn in pairs],
            bytes=count * layout.slot_bytes,
        )
    ids = stage.page_ids(2 * _PAGES).tolist()
    pages = list(zip(ids[:_PAGES], ids[_PAGES:], strict=True))
    yield Case(
        f"copy {_PAGES} pages over all layers",
        [partial(_copy_all, copy_page, stage.arena, pages)],
        bytes=2 * _PAGES * layout.page_bytes,
    )


def _copy_all(
    copy: Callable[[Arena, int, int], None], arena: Arena, pairs: Sequence[tuple[int, int]]
) -> None:
    for source, destination in pairs:
        copy(arena, source, destination)


def _zero_all(arena: Arena, slots: Sequence[int]) -> None:
    for slot in slots:
        zero_slot(arena, slot)
