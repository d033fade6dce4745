"""The arena: one allocation, its typed views, and copies inside it and between two arenas.

Owns the memory; does not know the users of its ids. Thread rule: the engine loop writes ids
allocated to it.
"""

from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import NamedTuple

import torch

from .layout import ONLY_ARENA, ArenaKey, BlockRegion, CacheLayout, SlotColumn

_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "uint8": torch.uint8,
}


def torch_dtype(name: str) -> torch.dtype:
    return _DTYPES[name]


class Arena:
    """The one allocation with every page and slot of a place and rank, and the layers' typed views.

    Owns `slabs` slabs of `layout` in one allocation; does not know the users of its ids.

    Not thread-safe for writers. The engine loop writes ids allocated by it. A transport writes ids
    granted to it. The two never overlap.

    All views share the same memory; none is contiguous:

    - kv[i]: [page ids, kv_heads, 2 (key, value), PAGE_TOKENS, head_dim] of the i-th block region.
      FP8 rows are uint8 [page ids, kv_heads, codes and scales].
    - conv[i]: [slot ids, channels, columns] of the i-th conv column.
    - ssm[i]: [slot ids, value_heads, value_dim, key_dim] of the i-th ssm column.
    - carry[i]: [slot ids, hidden] of the i-th draft layer.
    """

    def __init__(
        self,
        layout: CacheLayout,
        slabs: int,
        device: torch.device | str = "cpu",
        key: ArenaKey = ONLY_ARENA,
        memory: torch.Tensor | None = None,
    ) -> None:
        """key: this arena's name among the node's arenas; by default the only one. layout: one
        rank's share of heads. memory: zeros, uint8 [slabs * slab_bytes], used as this arena's
        memory; by default the arena allocates it."""
        self.key = key
        self.layout = layout
        self.slabs = slabs
        size = slabs * layout.slab_bytes
        self.bytes = (
            torch.zeros(size, dtype=torch.uint8, device=device) if memory is None else memory
        )
        self.kv = [self._block_view(region) for region in layout.regions]
        self.conv = self._column_views("conv")
        self.ssm = self._column_views("ssm")
        self.carry = self._column_views("carry")

    @property
    def address(self) -> int:
        return self.bytes.data_ptr()

    @property
    def size(self) -> int:
        return self.bytes.numel()

    def _block_view(self, region: BlockRegion) -> torch.Tensor:
        """Return [page ids, *region.shape]."""
        layout = self.layout
        # Page ids run to slabs * blocks_per_slab; the last regions' offset would run past the end
        # for ids that are no pages: the view stops at the last id whose block is inside the arena.
        ids = self.slabs * layout.blocks_per_slab - region.index * layout.pages_per_slab
        offset = region.index * layout.region_stride
        return self._view(region.shape, region.dtype, ids, layout.block_bytes, offset)

    def _column_views(self, name: str) -> list[torch.Tensor]:
        columns = [column for column in self.layout.columns if column.name == name]
        return [self._column_view(column) for column in columns]

    def _column_view(self, column: SlotColumn) -> torch.Tensor:
        """Return [slot ids, *column.shape]."""
        stride = self.layout.slab_bytes
        return self._view(column.shape, column.dtype, self.slabs, stride, column.offset)

    def _view(
        self, shape: Sequence[int], dtype: str, ids: int, stride: int, offset: int
    ) -> torch.Tensor:
        """Return `ids` dense tensors of `shape`, `stride` bytes apart, the first at `offset`
        bytes."""
        flat = self.bytes.view(torch_dtype(dtype))
        size = flat.element_size()
        strides = [1]
        for extent in reversed(shape[1:]):
            strides.insert(0, strides[0] * extent)
        begin = flat.storage_offset() + offset // size
        return flat.as_strided((ids, *shape), (stride // size, *strides), begin)


class CopyKind(IntEnum):
    PAGE = 0
    SLOT = 1
    ZERO_SLOT = 2


class CopyOp(NamedTuple):
    """One copy, by ids of pages or slots. A ZERO_SLOT reads nothing: its source is its
    destination."""

    kind: CopyKind
    source: int
    destination: int


def run_copies(arena: Arena, copies: Iterable[CopyOp]) -> None:
    """Run copies inside the arena, in order: a slot to a slot, a page to a page, zeros to a slot.

    Copies are plain values, because the code that decides a copy does not run it. A slot is one run
    of bytes. A page is one run in each block region, all at the same distance. So each copy is one
    operation, and one launch on a GPU. The caller orders them: on a GPU they join the current
    stream, on the CPU they are done on return.

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
    """Copy every column of every layer at once, for a fork or a snapshot."""
    _slot_bytes(arena, destination).copy_(_slot_bytes(arena, source))


def zero_slot(arena: Arena, slot: int) -> None:
    """Set the slot to the state before the first token."""
    _slot_bytes(arena, slot).zero_()


def copy_page(arena: Arena, source: int, destination: int) -> None:
    """Copy the KV of one page in every layer with KV."""
    _page_words(arena, destination).copy_(_page_words(arena, source))


def _slot_bytes(arena: Arena, slot: int) -> torch.Tensor:
    start = slot * arena.layout.slab_bytes
    return arena.bytes[start : start + arena.layout.slot_bytes]


def _page_words(arena: Arena, page: int) -> torch.Tensor:
    """Return the page as [regions, words of a block]. A word is eight bytes, because separate runs
    are copied element by element."""
    layout = arena.layout
    words = arena.bytes.view(torch.int64)
    block = layout.block_bytes // words.itemsize
    shape, strides = (len(layout.regions), block), (layout.pages_per_slab * block, 1)
    return words.as_strided(shape, strides, page * block)


PagePairs = Sequence[tuple[int, int]]
"""Pairs of (source, target)."""


def copy_pages_across(source: Arena, target: Arena, pages: PagePairs) -> None:
    """Copy the KV of these pages in every layer with KV, from one arena to another.

    Ids are each arena's own. If both arenas are in host memory, the copy is done on return.
    Otherwise it joins the calling thread's stream. No Python lock is held while bytes move.

    REQUIRES: the layouts are equal, and no target is named twice.
    """
    found = _blocks(source).index_select(0, _block_ids(source, [page for page, _ in pages]))
    wanted = _block_ids(target, [page for _, page in pages])
    _blocks(target).index_copy_(0, wanted, found.to(target.bytes.device))


def copy_slot_across(source: Arena, target: Arena, slot: tuple[int, int]) -> None:
    """Copy every column of every layer. Bytes of the slab after the columns stay unchanged."""
    _slot(target, slot[1]).copy_(_slot(source, slot[0]))


def _blocks(arena: Arena) -> torch.Tensor:
    """Return [blocks, words of one], contiguous."""
    return arena.bytes.view(torch.int64).view(-1, arena.layout.block_bytes // 8)


def _block_ids(arena: Arena, pages: Sequence[int]) -> torch.Tensor:
    """Return the block ids of all regions of each page."""
    layout = arena.layout
    regions = torch.arange(len(layout.regions)) * layout.pages_per_slab
    ids = torch.tensor(pages, dtype=torch.int64)[:, None] + regions
    return ids.flatten().to(arena.bytes.device)


def _slot(arena: Arena, slot: int) -> torch.Tensor:
    start = slot * arena.layout.slab_bytes
    return arena.bytes[start : start + arena.layout.slot_bytes]
