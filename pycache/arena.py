"""The arena: one allocation, its typed views, and copies inside it and between two places.

Owns the memory; does not know who uses which id. Thread rule: the engine loop writes ids that it
has.
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
    """The one allocation that holds every page and slot of a place and rank, and the typed views
    that layers read and write.

    Owns `slabs` slabs of `layout` in one allocation; does not know who uses which id.

    Not thread-safe for writers: the engine loop writes ids that it has allocated, a transport
    writes ids that were granted to it, and the two never overlap.

    Views, all into the same memory, none contiguous: kv[i]    [page ids, kv_heads, 2 (key, value),
    PAGE_TOKENS, head_dim] of the i-th block region; of FP8 rows uint8 [page ids, kv_heads, codes
    and scales] conv[i]  [slot ids, channels, columns]                               of the i-th
    conv column ssm[i]   [slot ids, value_heads, value_dim, key_dim]                 of the i-th ssm
    column carry[i] [slot ids, hidden]                                          of the i-th draft
    layer
    """

    def __init__(
        self,
        layout: CacheLayout,
        slabs: int,
        device: torch.device | str = "cpu",
        key: ArenaKey = ONLY_ARENA,
        memory: torch.Tensor | None = None,
    ) -> None:
        """key: which of the node's arenas this is; by default the only one. layout: of one rank's
        share of heads. memory: zeros, uint8 [slabs * slab_bytes], to be this arena's; by default
        its own."""
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
        """[page ids, *region.shape]."""
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
        """[slot ids, *column.shape]."""
        stride = self.layout.slab_bytes
        return self._view(column.shape, column.dtype, self.slabs, stride, column.offset)

    def _view(
        self, shape: Sequence[int], dtype: str, ids: int, stride: int, offset: int
    ) -> torch.Tensor:
        """Dense tensors of `shape`, `ids` of them, `stride` bytes apart, the first at `offset`
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
    """Ids of pages or slots. A ZERO_SLOT reads nothing: its source is its destination."""

    kind: CopyKind
    source: int
    destination: int


def run_copies(arena: Arena, copies: Iterable[CopyOp]) -> None:
    """Copies inside the arena: a slot onto a slot, a page onto a page, a slot to zero; and as plain
    values, since whoever decides a copy is not who runs it.

    A slot is one run of bytes, and a page a run a block region, all as far apart: each of these is
    one operation, and on a GPU one launch. Ordering is the caller's: there they join the current
    stream, on the CPU they are done on return.

    In their order: a later one may write what an earlier one reads.
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


PagePairs = Sequence[tuple[int, int]]
"""(source, target) of each."""


def copy_pages_across(source: Arena, target: Arena, pages: PagePairs) -> None:
    """Copies between the arenas of two places: pages onto pages, a slot onto a slot, of one layout.

    Ids are each arena's own. Where both are in host memory a copy is done on return; else it joins
    the calling thread's stream. Nothing here holds the interpreter's lock while bytes move.

    KV of these pages in every layer that keeps some. REQUIRES: the layouts are equal, and no target
    is named twice.
    """
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
