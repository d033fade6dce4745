"""Copies inside the arena: a slot onto a slot, a page onto a page, a slot to zero.

Ordering is the caller's: on a GPU these join the current stream, on the CPU they are done on
return.
"""

import torch

from .arena import Arena


def _slot_bytes(arena: Arena, slot: int) -> torch.Tensor:
    start = slot * arena.layout.slab_bytes
    return arena.bytes[start : start + arena.layout.slot_bytes]


def copy_slot(arena: Arena, source: int, destination: int) -> None:
    """Fork or snapshot: conv and recurrent state of every GDN layer at once."""
    _slot_bytes(arena, destination).copy_(_slot_bytes(arena, source))


def zero_slot(arena: Arena, slot: int) -> None:
    """The state before the first token."""
    _slot_bytes(arena, slot).zero_()


def copy_page(arena: Arena, source: int, destination: int) -> None:
    """KV of one page in every full-attention layer."""
    for kv in arena.kv:
        kv[destination].copy_(kv[source])
