"""The one allocation that holds every page and slot, and the typed views that layers read and
write."""

from math import prod

import torch

from .layout import PAGE_TOKENS, CacheLayout

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def torch_dtype(name: str) -> torch.dtype:
    return _DTYPES[name]


class Arena:
    """Owns `slabs` slabs of `layout` in one allocation; knows nothing of who uses which id.

    Not thread-safe for writers: the engine loop writes ids it has leased, a transport writes ids
    that were granted to it, and the two never overlap.

    Views, all into the same memory, none contiguous:
    kv[i]    [page ids, 2 (key, value), PAGE_TOKENS, kv_heads, head_dim] of the i-th full layer
    conv[i]  [slot ids, channels, columns]                               of the i-th GDN layer
    ssm[i]   [slot ids, value_heads, value_dim, key_dim]                 of the i-th GDN layer
    """

    def __init__(self, layout: CacheLayout, slabs: int, device: torch.device | str = "cpu") -> None:
        self.layout = layout
        self.slabs = slabs
        self.bytes = torch.zeros(slabs * layout.slab_bytes, dtype=torch.uint8, device=device)
        self.kv = [self._kv_view(index) for index in range(layout.full_layers)]
        self.conv = [self._conv_view(index) for index in range(layout.gdn_layers)]
        self.ssm = [self._ssm_view(index) for index in range(layout.gdn_layers)]

    @property
    def address(self) -> int:
        return self.bytes.data_ptr()

    @property
    def size(self) -> int:
        return self.bytes.numel()

    def _kv_view(self, index: int) -> torch.Tensor:
        layout = self.layout
        flat = self.bytes.view(torch_dtype(layout.kv_dtype))
        block = prod(layout.kv_shape)
        # Page ids run to slabs * blocks_per_slab; the last layers' offset would run past the end
        # for ids that are no pages: the view stops at the last id whose block is inside the arena.
        offset = index * layout.pages_per_slab * block
        ids = self.slabs * layout.blocks_per_slab - index * layout.pages_per_slab
        row = layout.kv_heads * layout.head_dim
        strides = (block, PAGE_TOKENS * row, row, layout.head_dim, 1)
        return flat.as_strided((ids, *layout.kv_shape), strides, offset)

    def _state_view(
        self, index: int, shape: tuple[int, ...], dtype: str, offset_bytes: int
    ) -> torch.Tensor:
        layout = self.layout
        flat = self.bytes.view(torch_dtype(dtype))
        size = flat.element_size()
        strides = [1]
        for extent in reversed(shape[1:]):
            strides.insert(0, strides[0] * extent)
        offset = (index * layout.state_layer_bytes + offset_bytes) // size
        return flat.as_strided((self.slabs, *shape), (layout.slab_bytes // size, *strides), offset)

    def _conv_view(self, index: int) -> torch.Tensor:
        return self._state_view(index, self.layout.conv_shape, self.layout.conv_dtype, 0)

    def _ssm_view(self, index: int) -> torch.Tensor:
        layout = self.layout
        return self._state_view(index, layout.ssm_shape, layout.ssm_dtype, layout.conv_bytes)
