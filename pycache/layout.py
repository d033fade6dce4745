"""Offsets and sizes of all KV and state in an arena, for one rank or several.

Pure, immutable values. Equal layouts are interchangeable.
"""

from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from math import prod

PAGE_TOKENS = 64
FP8_ROWS = "fp8"
"""Name of the KV dtype for rows of e4m3 codes, each row with its own scale (fp8_rows.py)."""
_STATE_ALIGNMENT = 64
_SIDES = 2
"""Number of vectors a token stores per KV head: a key and a value."""


class LayerKind(Enum):
    """Kind of a model layer. FULL: full attention, with pages. GDN: Gated DeltaNet, with a state.
    DRAFT: the layer for drafting tokens, after the model's own layers. It has attention, and a slot
    column with the final hidden state of the previous token."""

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
"""Kinds of the layers in a model's config, full attention and GDN. A draft layer is not among
them."""


@dataclass(frozen=True)
class Span:
    """A run of `length` bytes of the arena, from byte `offset`."""

    offset: int
    length: int


def _align(value: int, alignment: int) -> int:
    return -(-value // alignment) * alignment


@dataclass(frozen=True)
class BlockRegion:
    """One layer's part of a page: a block with a dense tensor of `shape`. The tensor's elements are
    bytes (uint8) if KV is kept as FP8 rows.

    layer: the layer's index in the model. index: this region's position in the layout's list of
    regions.
    """

    layer: int
    index: int
    shape: tuple[int, ...]
    dtype: str

    @property
    def length(self) -> int:
        """Return the size of the region's tensor in bytes."""
        return prod(self.shape) * itemsize(self.dtype)


@dataclass(frozen=True)
class SlotColumn:
    """One layer's part of a slot: a dense tensor of `shape` at `offset` bytes of the slot.

    layer: the layer's index in the model. name: the meaning of the column, "conv", "ssm" or
    "carry"; every layer's column of one meaning has the same name.
    """

    layer: int
    name: str
    offset: int
    shape: tuple[int, ...]
    dtype: str

    @property
    def length(self) -> int:
        """Return the column's size in bytes: its tensor, padded to the alignment of the next
        column."""
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
    strides only from the lists of regions and columns. A full-attention layer has one region, a GDN
    layer two columns, and a draft layer one region and one column.

    Immutable; equal layouts are interchangeable. Derived values are computed once, because a
    destination's check reads them for every page.

    Two nodes compare these fields before they exchange KV. layer_kinds: the model's layers, then
    DRAFT if there is a draft layer. A draft layer keeps KV as the others do, but from other inputs:
    entry j, at position j >= 1, is made from token j and the final hidden state of token j - 1.
    carry_width, carry_dtype: width and dtype of the carry, the final hidden state of the last
    token. Without a draft layer the width is 0.

    Shapes: KV of a page in a layer [kv_heads, 2 (key, value), PAGE_TOKENS, head_dim]. So a head's
    part of a page is one run of bytes. With FP8_ROWS this run has the codes, then their scales [2,
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
        """Return the regions of a page: one block of KV for every layer with KV, in layer order."""
        layers = [layer for layer, kind in enumerate(self.layer_kinds) if kind.keeps_pages]
        return tuple(
            BlockRegion(layer, index, *self._block_tensor) for index, layer in enumerate(layers)
        )

    @cached_property
    def columns(self) -> tuple[SlotColumn, ...]:
        """Return the columns of a slot, without gaps. They are conv and recurrent state of every
        GDN layer, in layer order, then a draft layer's carry (the last token's final hidden
        state)."""
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
        """Return the size in bytes of one KV head's part of a page in one layer."""
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
        """Return the size of a block in bytes: that of the longest region. All blocks have this
        size, so any block can serve any region."""
        return max(region.length for region in self.regions)

    @cached_property
    def conv_bytes(self) -> int:
        """Return the size in bytes of one GDN layer's conv column. The layer's recurrent state
        follows it in the slot."""
        return self._column_bytes("conv")

    @cached_property
    def state_layer_bytes(self) -> int:
        """Return the size in bytes of one GDN layer's part of a slot (conv and recurrent state). It
        is equal for every GDN layer."""
        return sum(self._column_bytes(name) for name in ("conv", "ssm"))

    @cached_property
    def carry_bytes(self) -> int:
        """Return the size in bytes of the draft layer's column of a slot; 0 without a draft
        layer."""
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
        """Return the distance in bytes between a page's blocks in two successive regions."""
        return self.pages_per_slab * self.block_bytes

    @cached_property
    def slab_bytes(self) -> int:
        return self.blocks_per_slab * self.block_bytes

    def kind_index(self, layer: int) -> int:
        """Return the layer's index among the layers of its sort: those with pages (full attention
        and draft), or the GDN layers."""
        pages = self.layer_kinds[layer].keeps_pages
        return sum(kind.keeps_pages is pages for kind in self.layer_kinds[:layer])

    def page_span(self, layer: int, page: int) -> Span:
        """Return the offset and length, in bytes of the arena, of one layer's KV in one page.
        REQUIRES: layer_kinds[layer].keeps_pages."""
        first = self._page_spans[layer]
        return Span(first.offset + page * self.block_bytes, first.length)

    def state_span(self, layer: int, slot: int) -> Span:
        """Return the offset and length, in bytes of the arena, of one layer's columns in one slot.
        REQUIRES: layer_kinds[layer].keeps_state."""
        first = self._state_spans[layer]
        return Span(first.offset + slot * self.slab_bytes, first.length)

    @cached_property
    def _page_spans(self) -> dict[int, Span]:
        """Return the byte range of each layer's KV in page 0, by layer index."""
        return {
            region.layer: Span(region.index * self.region_stride, region.length)
            for region in self.regions
        }

    @cached_property
    def _state_spans(self) -> dict[int, Span]:
        """Return the byte range of each layer's columns in slot 0, by layer index. A layer's
        columns are neighbours."""
        spans: dict[int, Span] = {}
        for column in self.columns:
            offset = spans[column.layer].offset if column.layer in spans else column.offset
            spans[column.layer] = Span(offset, column.end - offset)
        return spans

    @property
    def _block_tensor(self) -> tuple[tuple[int, ...], str]:
        """Return the shape and the dtype of a block's tensor."""
        if self.kv_dtype == FP8_ROWS:
            return (self.kv_heads, self.head_bytes), "uint8"
        return self.kv_shape, self.kv_dtype

    def _column_bytes(self, name: str) -> int:
        return next((column.length for column in self.columns if column.name == name), 0)

    def valid_page(self, page: int, slabs: int) -> bool:
        """Return true if `page` is a possible page id in an arena of `slabs` slabs."""
        return 0 <= page < slabs * self.blocks_per_slab and (
            page % self.blocks_per_slab < self.pages_per_slab
        )


def itemsize(dtype: str) -> int:
    """Return the size in bytes of one element of this dtype. Raises KeyError for an unknown
    dtype."""
    return {"float32": 4, "bfloat16": 2, "float16": 2, "uint8": 1}[dtype]


class Place(Enum):
    DEVICE = "device"
    """The memory read by the model's layers: a GPU's memory, or host memory if the model runs on a
    CPU."""
    HOST = "host"
    """Host memory as a tier below a GPU's memory."""


@dataclass(frozen=True)
class ArenaKey:
    """Name of an arena within its node: the place of its memory (GPU or host), and the
    tensor-parallel rank of the layers using it.

    A page or slot id means the same tokens on all ranks of one place.

    Raises ValueError if rank is not in [0, ranks).
    """

    place: Place = Place.DEVICE
    rank: int = 0
    ranks: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.ranks:
            raise ValueError(f"rank {self.rank} is not one of {self.ranks} ranks")


ONLY_ARENA = ArenaKey()
"""Key of the only arena in a node with one rank and no tier below the model's memory."""


def share(pieces: int, ranks: int, rank: int) -> range:
    """Return the range of this rank's pieces, such as heads or experts. Weights, arenas and
    hand-overs divide heads by this one rule.

    Pure. Each share is an equal run of neighbouring pieces. With more ranks than pieces, a share is
    one piece, and neighbouring ranks have the same piece. Raises ValueError unless one of the two
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
    """Return the number of key heads in a GDN layer, computed from its convolution channels [q | k
    | v]; 0 without GDN layers."""
    values = layout.value_heads * layout.value_dim
    return (layout.conv_channels - values) // (2 * layout.key_dim) if layout.key_dim else 0


def rank_layout(layout: CacheLayout, ranks: int, rank: int) -> CacheLayout:
    """Return the cache layout of one rank: the same pages and slots, with only this rank's heads.

    Pure. layout: the layout of a single rank with all heads. Every rank has the draft layer's whole
    carry. Raises ValueError if the heads cannot be divided evenly.
    """
    keys = len(share(key_heads(layout), ranks, rank))
    values = len(share(layout.value_heads, ranks, rank))
    return replace(
        layout,
        kv_heads=len(share(layout.kv_heads, ranks, rank)),
        conv_channels=2 * keys * layout.key_dim + values * layout.value_dim,
        value_heads=values,
    )
