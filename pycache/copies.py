"""Copies inside the arena: a slot onto a slot, a page onto a page, a slot to zero; and as plain
values, since whoever decides a copy is not who runs it.

A slot is one run of bytes, and a page a run a block region, all as far apart: each of these
is one operation, and on a GPU one launch. Ordering is the caller's: there they join the current
stream, on the CPU they are done on return.
"""

from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple

import torch

from .arena import Arena


class CopyKind(IntEnum):
    PAGE = 0
    SLOT = 1
    ZERO_SLOT = 2


class CopyOp(NamedTuple):
    """Ids of pages or slots. A ZERO_SLOT reads nothing: its source is its destination."""

    kind: CopyKind
    source: int
    destination: int


def run_copies(arena: Arena, copies: Iterable[CopyOp]) -> None:
    """In their order: a later one may write what an earlier one reads."""
    for kind, source, destination in copies:
        match kind:
            case CopyKind.PAGE:
                copy_page(arena, source, destination)
            case CopyKind.SLOT:
                copy_slot(arena, source, destination)
            case CopyKind.ZERO_SLOT:
                zero_slot(arena, destination)


def copy_slot(arena: Arena, source: int, destination: int) -> None:
    """Fork or snapshot: every column of every layer at once."""
    _slot_bytes(arena, destination).copy_(_slot_bytes(arena, source))


def zero_slot(arena: Arena, slot: int) -> None:
    """The state before the first token."""
    _slot_bytes(arena, slot).zero_()


def copy_page(arena: Arena, source: int, destination: int) -> None:
    """KV of one page in every layer that keeps some."""
    _page_words(arena, destination).copy_(_page_words(arena, source))


def _slot_bytes(arena: Arena, slot: int) -> torch.Tensor:
    start = slot * arena.layout.slab_bytes
    return arena.bytes[start : start + arena.layout.slot_bytes]


def _page_words(arena: Arena, page: int) -> torch.Tensor:
    """[regions, words of a block]: eight bytes at a time, since runs that are no neighbours are
    copied element by element."""
    layout = arena.layout
    words = arena.bytes.view(torch.int64)
    block = layout.block_bytes // words.itemsize
    shape, strides = (len(layout.regions), block), (layout.pages_per_slab * block, 1)
    return words.as_strided(shape, strides, page * block)
