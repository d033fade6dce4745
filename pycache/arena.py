"""The one allocation that holds every page and slot of a place and rank, and the typed views that
layers read and write."""

from collections.abc import Sequence

import torch

from .arena_key import ONLY_ARENA, ArenaKey
from .layout import BlockRegion, CacheLayout, SlotColumn

_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "uint8": torch.uint8,
}


def torch_dtype(name: str) -> torch.dtype:
    return _DTYPES[name]


class Arena:
    """Owns `slabs` slabs of `layout` in one allocation; does not know who uses which id.

    Not thread-safe for writers: the engine loop writes ids that it has allocated, a transport
    writes ids that were granted to it, and the two never overlap.

    Views, all into the same memory, none contiguous:
    kv[i]    [page ids, kv_heads, 2 (key, value), PAGE_TOKENS, head_dim] of the i-th block region;
             of FP8 rows uint8 [page ids, kv_heads, codes and scales]
    conv[i]  [slot ids, channels, columns]                               of the i-th conv column
    ssm[i]   [slot ids, value_heads, value_dim, key_dim]                 of the i-th ssm column
    carry[i] [slot ids, hidden]                                          of the i-th draft layer
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
