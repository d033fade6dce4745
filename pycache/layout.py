"""Offsets and sizes of all KV and state in an arena, for one rank or several.

Pure, immutable values. Equal layouts are interchangeable.
"""

from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from math import prod

PAGE_TOKENS = 64
FP8_ROWS = "fp8"
"""The dtype of KV kept as rows of e4m3 codes, each row with a scale (fp8_rows.py)."""
_STATE_ALIGNMENT = 64
_SIDES = 2
"""Sides of KV: keys and values."""


class LayerKind(Enum):
    """Kind of a layer. DRAFT: the layer that drafts tokens, after the model's own layers. It has
    attention, and a column for the hidden state carried over from the previous token."""

    FULL = "full_attention"
    GDN = "linear_attention"
    DRAFT = "draft"

    @property
    def keeps_pages(self) -> bool:
        return self is not LayerKind.GDN

    @property
    def keeps_state(self) -> bool:
        return self is not LayerKind.FULL


MODEL_KINDS = (LayerKind.FULL, LayerKind.GDN)
"""Kinds of the layers listed in a model's config. A draft layer is listed separately."""


@dataclass(frozen=True)
class Span:
    """`length` bytes of the arena from `offset`."""

    offset: int
    length: int


def _align(value: int, alignment: int) -> int:
    return -(-value // alignment) * alignment


@dataclass(frozen=True)
class BlockRegion:
    """One layer's part of a page: a block with a dense tensor of `shape`. The tensor has bytes if
    KV is kept as FP8 rows.

    layer: index in the model. index: position among the layout's regions.
    """

    layer: int
    index: int
    shape: tuple[int, ...]
    dtype: str

    @property
    def length(self) -> int:
        """Return the bytes of the tensor."""
        return prod(self.shape) * itemsize(self.dtype)


@dataclass(frozen=True)
class SlotColumn:
    """One layer's part of a slot: a dense tensor of `shape` at `offset` bytes of the slot.

    layer: index in the model. name: the same for all columns of one meaning, as "conv" and "ssm".
    """

    layer: int
    name: str
    offset: int
    shape: tuple[int, ...]
    dtype: str

    @property
    def length(self) -> int:
        """Return the tensor's bytes, padded so that the next column is aligned."""
        return _align(prod(self.shape) * itemsize(self.dtype), _STATE_ALIGNMENT)

    @property
    def end(self) -> int:
        return self.offset + self.length


@dataclass(frozen=True)
class CacheLayout:
    """Offsets and sizes of all KV and state in the arena, derived from the model's shape.

    An arena is `slabs` slabs of `blocks_per_slab` blocks of `block_bytes` bytes. A slab holds
    either one state slot or `pages_per_slab` pages. A page has one block in every `BlockRegion`.
    Pages are region-major: region r of page q is block q + r * pages_per_slab. So every view and
    kernel has the single stride `block_bytes`. In each region, the pages of one request in a slab
    are contiguous. A slot is its `SlotColumn`s end to end. Views, kernels and copies take their
    strides only from these two lists. They have one region a full-attention layer, two columns a
    GDN layer, and one of each a draft layer.

    Immutable; equal layouts are interchangeable. Derived values are computed once, because a
    destination's check reads them for every page.

    Two nodes compare the fields in their contract. layer_kinds: the model's layers, then DRAFT if
    there is a draft layer. A draft layer keeps KV as the others do, but entry j, at position j >=
    1, is made from token j and the final hidden state of token j - 1. carry_width, carry_dtype: of
    that hidden state after the last token; width 0 without a draft layer.

    Shapes: KV of a page in a layer [kv_heads, 2 (key, value), PAGE_TOKENS, head_dim]. So a head's
    part of a page is one run of bytes. In FP8_ROWS this run has the codes, then their scales [2,
    PAGE_TOKENS]. Conv state of a layer: [conv_channels, conv_columns]. Recurrent (ssm) state of a
    layer: [value_heads, value_dim, key_dim].
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
    carry_width: int = 0
    carry_dtype: str = "float32"

    @cached_property
    def regions(self) -> tuple[BlockRegion, ...]:
        """Return a page's blocks: the KV of every layer with KV, in layer order."""
        layers = [layer for layer, kind in enumerate(self.layer_kinds) if kind.keeps_pages]
        return tuple(
            BlockRegion(layer, index, *self._block_tensor) for index, layer in enumerate(layers)
        )

    @cached_property
    def columns(self) -> tuple[SlotColumn, ...]:
        """Return a slot's columns, without gaps: conv and recurrent state of every GDN layer, in
        layer order, then a draft layer's carry."""
        of_kind: dict[LayerKind, tuple[tuple[str, tuple[int, ...], str], ...]] = {
            LayerKind.GDN: (
                ("conv", self.conv_shape, self.conv_dtype),
                ("ssm", self.ssm_shape, self.ssm_dtype),
            ),
            LayerKind.FULL: (),
            LayerKind.DRAFT: (("carry", (self.carry_width,), self.carry_dtype),),
        }
        columns: list[SlotColumn] = []
        offset = 0
        for layer, kind in enumerate(self.layer_kinds):
            for name, shape, dtype in of_kind[kind]:
                columns.append(SlotColumn(layer, name, offset, shape, dtype))
                offset = columns[-1].end
        return tuple(columns)

    @cached_property
    def full_layers(self) -> int:
        """Return the number of the model's full-attention layers, without a draft layer."""
        return self.layer_kinds.count(LayerKind.FULL)

    @cached_property
    def draft_layers(self) -> int:
        return self.layer_kinds.count(LayerKind.DRAFT)

    @cached_property
    def gdn_layers(self) -> int:
        return self.layer_kinds.count(LayerKind.GDN)

    @cached_property
    def kv_shape(self) -> tuple[int, int, int, int]:
        return (self.kv_heads, _SIDES, PAGE_TOKENS, self.head_dim)

    @cached_property
    def head_bytes(self) -> int:
        """Return the bytes of one head's part of a page in one layer."""
        rows = _SIDES * PAGE_TOKENS
        if self.kv_dtype == FP8_ROWS:
            return rows * (self.head_dim + 1)
        return rows * self.head_dim * itemsize(self.kv_dtype)

    @cached_property
    def conv_shape(self) -> tuple[int, int]:
        return (self.conv_channels, self.conv_columns)

    @cached_property
    def ssm_shape(self) -> tuple[int, int, int]:
        return (self.value_heads, self.value_dim, self.key_dim)

    @cached_property
    def block_bytes(self) -> int:
        """Return the bytes of the longest region. All blocks have this length, so that any block
        can serve any region."""
        return max(region.length for region in self.regions)

    @cached_property
    def conv_bytes(self) -> int:
        """Return the bytes of a layer's conv column. Its recurrent state follows."""
        return self._column_bytes("conv")

    @cached_property
    def state_layer_bytes(self) -> int:
        """Return the bytes of all columns of a GDN layer; equal for every GDN layer."""
        return sum(self._column_bytes(name) for name in ("conv", "ssm"))

    @cached_property
    def carry_bytes(self) -> int:
        """Return the bytes of a draft layer's column; 0 without one."""
        return self._column_bytes("carry")

    @cached_property
    def slot_bytes(self) -> int:
        return sum(column.length for column in self.columns)

    @cached_property
    def page_bytes(self) -> int:
        return len(self.regions) * self.block_bytes

    @cached_property
    def blocks_per_slab(self) -> int:
        return max(-(-self.slot_bytes // self.block_bytes), len(self.regions))

    @cached_property
    def pages_per_slab(self) -> int:
        return self.blocks_per_slab // len(self.regions)

    @cached_property
    def region_stride(self) -> int:
        """Return the bytes from a page's block in one region to its block in the next."""
        return self.pages_per_slab * self.block_bytes

    @cached_property
    def slab_bytes(self) -> int:
        return self.blocks_per_slab * self.block_bytes

    def kind_index(self, layer: int) -> int:
        """Return the layer's index among the layers with pages; for a GDN layer, among those
        without pages."""
        pages = self.layer_kinds[layer].keeps_pages
        return sum(kind.keeps_pages is pages for kind in self.layer_kinds[:layer])

    def page_span(self, layer: int, page: int) -> Span:
        """Return the bytes of one page in one layer. REQUIRES: layer_kinds[layer].keeps_pages."""
        first = self._page_spans[layer]
        return Span(first.offset + page * self.block_bytes, first.length)

    def state_span(self, layer: int, slot: int) -> Span:
        """Return the bytes of all columns of one layer in one slot. REQUIRES:
        layer_kinds[layer].keeps_state."""
        first = self._state_spans[layer]
        return Span(first.offset + slot * self.slab_bytes, first.length)

    @cached_property
    def _page_spans(self) -> dict[int, Span]:
        """Return the spans of page 0, by layer."""
        return {
            region.layer: Span(region.index * self.region_stride, region.length)
            for region in self.regions
        }

    @cached_property
    def _state_spans(self) -> dict[int, Span]:
        """Return the spans of slot 0, by layer. A layer's columns are neighbours."""
        spans: dict[int, Span] = {}
        for column in self.columns:
            offset = spans[column.layer].offset if column.layer in spans else column.offset
            spans[column.layer] = Span(offset, column.end - offset)
        return spans

    @property
    def _block_tensor(self) -> tuple[tuple[int, ...], str]:
        """Return the (shape, dtype) of a block's tensor."""
        if self.kv_dtype == FP8_ROWS:
            return (self.kv_heads, self.head_bytes), "uint8"
        return self.kv_shape, self.kv_dtype

    def _column_bytes(self, name: str) -> int:
        return next((column.length for column in self.columns if column.name == name), 0)

    def valid_page(self, page: int, slabs: int) -> bool:
        """Return true if `page` is the index of a page in an arena of `slabs` slabs."""
        return 0 <= page < slabs * self.blocks_per_slab and (
            page % self.blocks_per_slab < self.pages_per_slab
        )


def itemsize(dtype: str) -> int:
    """Return the bytes of one element. Raises KeyError for any other dtype."""
    return {"float32": 4, "bfloat16": 2, "float16": 2, "uint8": 1}[dtype]


class Place(Enum):
    DEVICE = "device"
    """The memory used by layers: a GPU's, or the host's if the model runs on a CPU."""
    HOST = "host"
    """Host memory below a GPU's."""


@dataclass(frozen=True)
class ArenaKey:
    """Name of an arena within its node: the place of its memory, and the rank of the layers served.

    The same page or slot id means the same tokens in every arena of one place, for all ranks.

    Raises ValueError if rank is not in [0, ranks).
    """

    place: Place = Place.DEVICE
    rank: int = 0
    ranks: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.ranks:
            raise ValueError(f"rank {self.rank} is not one of {self.ranks} ranks")


ONLY_ARENA = ArenaKey()
"""Key of the arena of a node with one rank and no tier below its device."""


def share(pieces: int, ranks: int, rank: int) -> range:
    """Return a rank's share of the pieces, in order. Weights, arenas and hand-overs divide heads by
    this one rule.

    Pure. Each share is an equal run of neighbouring pieces. With more ranks than pieces, a share is
    one piece, and neighbouring ranks have the same one. Raises ValueError unless one of the two
    numbers divides the other.
    """
    if pieces % ranks == 0:
        each = pieces // ranks
        return range(rank * each, (rank + 1) * each)
    if ranks % pieces:
        raise ValueError(f"{pieces} segments cannot be shared out evenly among {ranks} ranks")
    first = rank * pieces // ranks
    return range(first, first + 1)


def key_heads(layout: CacheLayout) -> int:
    """Return the key heads of a GDN layer, from its convolution channels [q | k | v]; 0 without GDN
    layers."""
    values = layout.value_heads * layout.value_dim
    return (layout.conv_channels - values) // (2 * layout.key_dim) if layout.key_dim else 0


def rank_layout(layout: CacheLayout, ranks: int, rank: int) -> CacheLayout:
    """Return one rank's layout: the same pages and slots, with that rank's heads.

    Pure. layout: of one rank with all heads. Every rank has the whole carry of a draft layer.
    Raises ValueError if the heads cannot be shared out.
    """
    keys = len(share(key_heads(layout), ranks, rank))
    values = len(share(layout.value_heads, ranks, rank))
    return replace(
        layout,
        kv_heads=len(share(layout.kv_heads, ranks, rank)),
        conv_channels=2 * keys * layout.key_dim + values * layout.value_dim,
        value_heads=values,
    )
