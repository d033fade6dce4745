"""Where every byte of KV and state lies in the arena, derived from the model's shape.

An arena is `slabs` slabs of `blocks_per_slab` blocks of `block_bytes` bytes. A block is the KV of
one page in one full-attention layer. A slab holds either one state slot or `pages_per_slab` pages,
the pages in layer-major order: layer l of page q lies at block q + l * pages_per_slab, so that
every view and every kernel sees the single stride `block_bytes`, and the pages of one request in a
slab are one contiguous run a layer.
"""

from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from math import prod

PAGE_TOKENS = 64
_STATE_ALIGNMENT = 64


class LayerKind(Enum):
    FULL = "full_attention"
    GDN = "linear_attention"


@dataclass(frozen=True)
class Span:
    """`length` bytes of the arena from `offset`."""

    offset: int
    length: int


def _align(value: int, alignment: int) -> int:
    return -(-value // alignment) * alignment


@dataclass(frozen=True)
class CacheLayout:
    """Shapes of one page and one slot. Immutable; equal layouts are interchangeable. What follows
    from them is computed once: a grant's check asks for it at every page.

    Shapes: KV of a page in a layer [2, PAGE_TOKENS, kv_heads, head_dim]; conv state of a layer
    [conv_channels, conv_columns]; recurrent (ssm) state of a layer [value_heads, value_dim,
    key_dim].
    """

    layer_kinds: tuple[LayerKind, ...]
    kv_heads: int
    head_dim: int
    kv_dtype: str
    conv_channels: int
    conv_columns: int
    conv_dtype: str
    value_heads: int
    value_dim: int
    key_dim: int
    ssm_dtype: str

    @cached_property
    def full_layers(self) -> int:
        return self.layer_kinds.count(LayerKind.FULL)

    @cached_property
    def gdn_layers(self) -> int:
        return self.layer_kinds.count(LayerKind.GDN)

    @cached_property
    def kv_shape(self) -> tuple[int, int, int, int]:
        return (2, PAGE_TOKENS, self.kv_heads, self.head_dim)

    @cached_property
    def conv_shape(self) -> tuple[int, int]:
        return (self.conv_channels, self.conv_columns)

    @cached_property
    def ssm_shape(self) -> tuple[int, int, int]:
        return (self.value_heads, self.value_dim, self.key_dim)

    @cached_property
    def block_bytes(self) -> int:
        return prod(self.kv_shape) * itemsize(self.kv_dtype)

    @cached_property
    def conv_bytes(self) -> int:
        """Padded, so that the recurrent state behind it stays aligned."""
        return _align(prod(self.conv_shape) * itemsize(self.conv_dtype), _STATE_ALIGNMENT)

    @cached_property
    def ssm_bytes(self) -> int:
        return _align(prod(self.ssm_shape) * itemsize(self.ssm_dtype), _STATE_ALIGNMENT)

    @cached_property
    def state_layer_bytes(self) -> int:
        return self.conv_bytes + self.ssm_bytes

    @cached_property
    def slot_bytes(self) -> int:
        return self.gdn_layers * self.state_layer_bytes

    @cached_property
    def page_bytes(self) -> int:
        return self.full_layers * self.block_bytes

    @cached_property
    def blocks_per_slab(self) -> int:
        return max(-(-self.slot_bytes // self.block_bytes), self.full_layers)

    @cached_property
    def pages_per_slab(self) -> int:
        return self.blocks_per_slab // self.full_layers

    @cached_property
    def slab_bytes(self) -> int:
        return self.blocks_per_slab * self.block_bytes

    def kind_index(self, layer: int) -> int:
        """Which of the layers of its own kind `layer` is."""
        return self.layer_kinds[:layer].count(self.layer_kinds[layer])

    def page_span(self, layer: int, page: int) -> Span:
        """Bytes of one page in one full-attention layer. REQUIRES: layer_kinds[layer] is FULL."""
        block = page + self.kind_index(layer) * self.pages_per_slab
        return Span(block * self.block_bytes, self.block_bytes)

    def state_span(self, layer: int, slot: int) -> Span:
        """Bytes of conv and recurrent state of one GDN layer. REQUIRES: layer_kinds[layer] is
        GDN."""
        offset = slot * self.slab_bytes + self.kind_index(layer) * self.state_layer_bytes
        return Span(offset, self.state_layer_bytes)

    def valid_page(self, page: int, slabs: int) -> bool:
        """Whether `page` is the index of a page in an arena of that many slabs."""
        return 0 <= page < slabs * self.blocks_per_slab and (
            page % self.blocks_per_slab < self.pages_per_slab
        )


def itemsize(dtype: str) -> int:
    """Bytes of one element. Raises KeyError on a dtype that no cache uses."""
    return {"float32": 4, "bfloat16": 2, "float16": 2}[dtype]
