"""The arena: one allocation, its typed views, and copies inside it and between two arenas.

Owns the memory; does not know the requests using its page and slot ids. Thread rule: the engine
loop writes only the pages and slots allocated to it.
"""

from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import NamedTuple

import torch

from .layout import ONLY_ARENA, ArenaKey, BlockRegion, CacheLayout, PlacedPart


def torch_dtype(name: str) -> torch.dtype:
    found: torch.dtype = getattr(torch, name)
    return found


class Arena:
    """The one allocation with every page and slot of one place (GPU or host) and one rank, and the
    layers' typed views of it.

    Owns `slabs` slabs (parts of equal size, `layout` divides each). Does not know the requests
    using its page and slot ids.

    Not thread-safe for writers. The engine loop writes the pages and slots allocated by it. A
    transport writes those granted to it as a destination. The two sets never overlap.

    Views of parts share the same memory; none is contiguous. A view has ids (of pages or slots) as
    its first dimension, then the part's stored tensor.
    """

    def __init__(
        self,
        layout: CacheLayout,
        slabs: int,
        device: torch.device | str = "cpu",
        key: ArenaKey = ONLY_ARENA,
        memory: torch.Tensor | None = None,
    ) -> None:
        """key: name of this arena among the node's arenas; by default the node's only one. layout:
        the layout with one rank's share of the heads. slabs: number of slabs in the arena. memory:
        zeros, uint8 [slabs * slab_bytes], for this arena to use; by default allocated here."""
        self.key = key
        self.layout = layout
        self.slabs = slabs
        size = slabs * layout.slab_bytes
        self.bytes = (
            torch.zeros(size, dtype=torch.uint8, device=device) if memory is None else memory
        )
        self._views: dict[str, dict[int, torch.Tensor]] = {}
        for region in layout.regions:
            for part in region.parts:
                self._views.setdefault(part.name, {})[part.layer] = self._block_view(region, part)
        for part in layout.columns:
            self._views.setdefault(part.name, {})[part.layer] = self._column_view(part)

    def view(self, layer: int, name: str) -> torch.Tensor:
        """Return the view of one layer's part: [page or slot ids, *shape of the stored tensor].
        Raises KeyError if the layer has no such part."""
        return self._views[name][layer]

    def views(self, name: str) -> list[torch.Tensor]:
        """Return the views of the parts of this name in all layers, in layer order."""
        return [*self._views.get(name, {}).values()]

    @property
    def address(self) -> int:
        return self.bytes.data_ptr()

    @property
    def size(self) -> int:
        return self.bytes.numel()

    def _block_view(self, region: BlockRegion, part: PlacedPart) -> torch.Tensor:
        layout = self.layout
        # Page ids run to slabs * blocks_per_slab; the last regions' offset would run past the end
        # for ids that are no pages: the view stops at the last id whose block is inside the arena.
        ids = self.slabs * layout.blocks_per_slab - region.index * layout.pages_per_slab
        offset = region.index * layout.region_stride
        return self._view(part, ids, layout.block_bytes, offset)

    def _column_view(self, part: PlacedPart) -> torch.Tensor:
        return self._view(part, self.slabs, self.layout.slab_bytes, 0)

    def _view(self, part: PlacedPart, ids: int, stride: int, offset: int) -> torch.Tensor:
        """Return the part's tensors with `ids` ids as one view. Their blocks or slots are `stride`
        bytes apart, and the first is at `offset` bytes of the arena."""
        flat, shape = self.bytes.view(torch_dtype(part.dtype)), part.shape
        size = flat.element_size()
        strides = [1]
        for extent in reversed(shape[1:]):
            strides.insert(0, strides[0] * extent)
        strides[0] = part.row_stride // size
        begin = flat.storage_offset() + (offset + part.offset) // size
        return flat.as_strided((ids, *shape), (stride // size, *strides), begin)


class CopyKind(IntEnum):
    PAGE = 0
    SLOT = 1
    ZERO_SLOT = 2


class CopyOp(NamedTuple):
    """One copy inside an arena, from one page or slot id to another. A ZERO_SLOT copy reads nothing
    and fills the slot with zeros: its source id is its destination id."""

    kind: CopyKind
    source: int
    destination: int


def run_copies(arena: Arena, copies: Iterable[CopyOp]) -> None:
    """Run copies inside the arena, in order: a slot to a slot, a page to a page, zeros to a slot.

    Copies are plain values, because other code decides them. A slot is one run of bytes. A page is
    one run in each block region, and these runs have equal distances. So each copy is one
    operation, and one launch on a GPU. On a GPU the copies join the current stream. On the CPU they
    are done on return.

    A later copy may write memory read by an earlier one.
    """
    for kind, source, destination in copies:
        match kind:
            case CopyKind.PAGE:
                copy_page(arena, source, destination)
            case CopyKind.SLOT:
                copy_slot(arena, source, destination)
            case CopyKind.ZERO_SLOT:
                zero_slot(arena, destination)


def copy_slot(arena: Arena, source: int, destination: int) -> None:
    """Copy the whole state of one slot (every column of every layer) to another slot, in one
    operation. It serves a fork of a checkpoint or a snapshot."""
    _slot_bytes(arena, destination).copy_(_slot_bytes(arena, source))


def zero_slot(arena: Arena, slot: int) -> None:
    """Set the slot to zeros, the recurrent state before the first token."""
    _slot_bytes(arena, slot).zero_()


def copy_page(arena: Arena, source: int, destination: int) -> None:
    """Copy one page to another page, in every layer with pages."""
    _page_words(arena, destination).copy_(_page_words(arena, source))


def _slot_bytes(arena: Arena, slot: int) -> torch.Tensor:
    start = slot * arena.layout.slab_bytes
    return arena.bytes[start : start + arena.layout.slot_bytes]


def _page_words(arena: Arena, page: int) -> torch.Tensor:
    """Return a view of one page: int64 [regions, eight-byte words of a block]. Words of eight bytes
    make the copy fast, because separate runs are copied element by element."""
    layout = arena.layout
    words = arena.bytes.view(torch.int64)
    block = layout.block_bytes // words.itemsize
    shape, strides = (len(layout.regions), block), (layout.pages_per_slab * block, 1)
    return words.as_strided(shape, strides, page * block)


PagePairs = Sequence[tuple[int, int]]
"""Pairs of (source page id, target page id)."""


def copy_pages_across(source: Arena, target: Arena, pages: PagePairs) -> None:
    """Copy these pages in every layer with pages, from one arena to another.

    The first id of each pair is a page of `source`, the second a page of `target`. If both arenas
    are in host memory, the copy is done on return. Otherwise it joins the calling thread's stream.
    No Python lock is held while bytes move.

    REQUIRES: the layouts are equal, and no target page is named twice.
    """
    found = _blocks(source).index_select(0, _block_ids(source, [page for page, _ in pages]))
    wanted = _block_ids(target, [page for _, page in pages])
    _blocks(target).index_copy_(0, wanted, found.to(target.bytes.device))


def copy_slot_across(source: Arena, target: Arena, slot: tuple[int, int]) -> None:
    """Copy the state of one slot, every column of every layer, from one arena to another. slot: (id
    in `source`, id in `target`). The slab's bytes after the columns stay unchanged."""
    _slot_bytes(target, slot[1]).copy_(_slot_bytes(source, slot[0]))


def _blocks(arena: Arena) -> torch.Tensor:
    """Return the arena's memory as int64 [blocks, eight-byte words of a block], contiguous."""
    return arena.bytes.view(torch.int64).view(-1, arena.layout.block_bytes // 8)


def _block_ids(arena: Arena, pages: Sequence[int]) -> torch.Tensor:
    """Return the ids of all blocks of these pages, one per region, page by page."""
    layout = arena.layout
    regions = torch.arange(len(layout.regions)) * layout.pages_per_slab
    ids = torch.tensor(pages, dtype=torch.int64)[:, None] + regions
    return ids.flatten().to(arena.bytes.device)
