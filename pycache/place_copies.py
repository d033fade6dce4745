"""Copies between the arenas of two places: pages onto pages, a slot onto a slot, of one layout.

Ids are each arena's own. Where both are in host memory a copy is done on return; else it joins the
calling thread's stream. Nothing here holds the interpreter's lock while bytes move.
"""

from collections.abc import Sequence

import torch

from .arena import Arena

PagePairs = Sequence[tuple[int, int]]
"""(source, target) of each."""


def copy_pages_across(source: Arena, target: Arena, pages: PagePairs) -> None:
    """KV of these pages in every layer that keeps some. REQUIRES: the layouts are equal, and no
    target is named twice."""
    found = _blocks(source).index_select(0, _block_ids(source, [page for page, _ in pages]))
    wanted = _block_ids(target, [page for _, page in pages])
    _blocks(target).index_copy_(0, wanted, found.to(target.bytes.device))


def copy_slot_across(source: Arena, target: Arena, slot: tuple[int, int]) -> None:
    """Every column of every layer: what is in a slab behind them stays."""
    _slot(target, slot[1]).copy_(_slot(source, slot[0]))


def _blocks(arena: Arena) -> torch.Tensor:
    """[blocks, words of one], contiguous."""
    return arena.bytes.view(torch.int64).view(-1, arena.layout.block_bytes // 8)


def _block_ids(arena: Arena, pages: Sequence[int]) -> torch.Tensor:
    """Of all regions of each page."""
    layout = arena.layout
    regions = torch.arange(len(layout.regions)) * layout.pages_per_slab
    ids = torch.tensor(pages, dtype=torch.int64)[:, None] + regions
    return ids.flatten().to(arena.bytes.device)


def _slot(arena: Arena, slot: int) -> torch.Tensor:
    start = slot * arena.layout.slab_bytes
    return arena.bytes[start : start + arena.layout.slot_bytes]
