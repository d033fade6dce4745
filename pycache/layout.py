"""Where every byte of KV and state is in an arena, for one rank or several.

Pure, immutable values. Equal layouts are interchangeable.
"""

from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from math import prod

PAGE_TOKENS = 64
FP8_ROWS = "fp8"
"""The dtype of KV that is kept as rows of e4m3 codes, each with a scale (fp8_rows.py)."""
_STATE_ALIGNMENT = 64
_SIDES = 2
"""Of KV: keys and values."""


class LayerKind(Enum):
    """DRAFT: the layer that drafts tokens, behind the model's own; attention, with a column for
    what it takes over from the token before."""

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
"""Of the layers that a model's config lists: a draft layer stands apart."""


@dataclass(frozen=True)
class Span:
    """`length` bytes of the arena from `offset`."""

    offset: int
    length: int


def _align(value: int, alignment: int) -> int:
    return -(-value // alignment) * alignment


@dataclass(frozen=True)
class BlockRegion:
    """What one layer keeps of a page: a block, which holds a dense tensor of `shape`, of bytes
    where KV is kept as FP8 rows.

    layer: of the model. index: place among the layout's regions.
    """

    layer: int
    index: int
    shape: tuple[int, ...]
    dtype: str

    @property
    def length(self) -> int:
        """Bytes of the tensor."""
        return prod(self.shape) * itemsize(self.dtype)


@dataclass(frozen=True)
class SlotColumn:
    """What one layer keeps in a slot: a dense tensor of `shape` at `offset` bytes of the slot.

    layer: of the model. name: the same for all columns of one meaning, as "conv" and "ssm".
    """

    layer: int
    name: str
    offset: int
    shape: tuple[int, ...]
    dtype: str

    @property
    def length(self) -> int:
        """Bytes of the tensor, padded, so that the column behind it stays aligned."""
        return _align(prod(self.shape) * itemsize(self.dtype), _STATE_ALIGNMENT)

    @property
    def end(self) -> int:
        return self.offset + self.length


@dataclass(frozen=True)
class CacheLayout:
    """Where every byte of KV and state lies in the arena, derived from the model's shape.

    An arena is `slabs` slabs of `blocks_per_slab` blocks of `block_bytes` bytes. A slab holds
    either one state slot or `pages_per_slab` pages. A page has one block in every `BlockRegion`.
    Pages lie region-major: region r of page q is block q + r * pages_per_slab, so that every view
    and every kernel has the single stride `block_bytes`, and the pages of one request in a slab are
    one contiguous run a region. A slot is its `SlotColumn`s end to end. These two lists are all
    that views, kernels and copies take their strides from: there is one region a full-attention
    layer, two columns a GDN layer, and one of each of a draft layer.

    Shapes of one page and one slot. Immutable; equal layouts are interchangeable. What follows from
    them is computed once: a grant's check asks for it at every page.

    The fields are what two nodes compare in their contract. layer_kinds: of the model, then DRAFT
    where there is a draft layer, which keeps KV as the others do, but entry j, of position j >= 1,
    is of token j and the final hidden state of token j - 1; carry_width, carry_dtype: of that state
    behind the last token, 0 wide without a draft layer. Shapes: KV of a page in a layer [kv_heads,
    2 (key, value), PAGE_TOKENS, head_dim], so that what a head has of a page is one run of bytes,
    which in FP8_ROWS are its codes, then their scales [2, PAGE_TOKENS]; conv state of a layer
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
    carry_width: int = 0
    carry_dtype: str = "float32"

    @cached_property
    def regions(self) -> tuple[BlockRegion, ...]:
        """A page's blocks: KV of every layer that keeps some, in the order of layers."""
        layers = [layer for layer, kind in enumerate(self.layer_kinds) if kind.keeps_pages]
        return tuple(
            BlockRegion(layer, index, *self._block_tensor) for index, layer in enumerate(layers)
        )

    @cached_property
    def columns(self) -> tuple[SlotColumn, ...]:
        """A slot's columns, without a gap between them: conv and recurrent state of every GDN
        layer, in the order of layers, then what a draft layer carries."""
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
        """Full-attention layers of the model; a draft layer is none of them."""
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
        """Of what a head has of a page in a layer."""
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
        """Of the longest region: blocks are equally long, so that any block can be any region's."""
        return max(region.length for region in self.regions)

    @cached_property
    def conv_bytes(self) -> int:
        """Of a layer's conv column, behind which its recurrent state begins."""
        return self._column_bytes("conv")

    @cached_property
    def state_layer_bytes(self) -> int:
        """Of a layer's columns together; the same for every GDN layer."""
        return sum(self._column_bytes(name) for name in ("conv", "ssm"))

    @cached_property
    def carry_bytes(self) -> int:
        """Of a draft layer's column; 0 without one."""
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
        """Bytes from a page's block in one region to its block in the next."""
        return self.pages_per_slab * self.block_bytes

    @cached_property
    def slab_bytes(self) -> int:
        return self.blocks_per_slab * self.block_bytes

    def kind_index(self, layer: int) -> int:
        """Which of the layers that keep pages `layer` is; of a GDN layer, which of those."""
        pages = self.layer_kinds[layer].keeps_pages
        return sum(kind.keeps_pages is pages for kind in self.layer_kinds[:layer])

    def page_span(self, layer: int, page: int) -> Span:
        """Bytes of one page in one layer. REQUIRES: layer_kinds[layer].keeps_pages."""
        first = self._page_spans[layer]
        return Span(first.offset + page * self.block_bytes, first.length)

    def state_span(self, layer: int, slot: int) -> Span:
        """Bytes of all columns of one layer in one slot. REQUIRES:
        layer_kinds[layer].keeps_state."""
        first = self._state_spans[layer]
        return Span(first.offset + slot * self.slab_bytes, first.length)

    @cached_property
    def _page_spans(self) -> dict[int, Span]:
        """By layer, of page 0."""
        return {
            region.layer: Span(region.index * self.region_stride, region.length)
            for region in self.regions
        }

    @cached_property
    def _state_spans(self) -> dict[int, Span]:
        """By layer, of slot 0: a layer's columns are neighbours."""
        spans: dict[int, Span] = {}
        for column in self.columns:
            offset = spans[column.layer].offset if column.layer in spans else column.offset
            spans[column.layer] = Span(offset, column.end - offset)
        return spans

    @property
    def _block_tensor(self) -> tuple[tuple[int, ...], str]:
        """(shape, dtype) of what a block holds."""
        if self.kv_dtype == FP8_ROWS:
            return (self.kv_heads, self.head_bytes), "uint8"
        return self.kv_shape, self.kv_dtype

    def _column_bytes(self, name: str) -> int:
        return next((column.length for column in self.columns if column.name == name), 0)

    def valid_page(self, page: int, slabs: int) -> bool:
        """Whether `page` is the index of a page in an arena of that many slabs."""
        return 0 <= page < slabs * self.blocks_per_slab and (
            page % self.blocks_per_slab < self.pages_per_slab
        )


def itemsize(dtype: str) -> int:
    """Bytes of one element. Raises KeyError on a dtype that no tensor of a cache has."""
    return {"float32": 4, "bfloat16": 2, "float16": 2, "uint8": 1}[dtype]


class Place(Enum):
    DEVICE = "device"
    """Where layers compute: a GPU's memory, or the host's where the model runs on a CPU."""
    HOST = "host"
    """Host memory below a GPU's."""


@dataclass(frozen=True)
class ArenaKey:
    """Which of a node's arenas one is: where its memory is, and the rank whose layers it serves.

    An arena's name within its node. The same page or slot id means the same tokens in every arena
    of one place, whatever the rank.

    Raises ValueError where rank is not in [0, ranks).
    """

    place: Place = Place.DEVICE
    rank: int = 0
    ranks: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.ranks:
            raise ValueError(f"rank {self.rank} is not one of {self.ranks} ranks")


ONLY_ARENA = ArenaKey()
"""Of a node with one rank and no tier below its device."""


def share(pieces: int, ranks: int, rank: int) -> range:
    """Which heads a rank has: the one rule that weights, arenas and hand-overs between nodes cut
    by.

    Pure.

    Of so many pieces, in order, those of a rank: equal runs of neighbours; where there are more
    ranks than pieces, one piece, which neighbouring ranks have alike. Raises ValueError unless one
    of the two numbers divides the other.
    """
    if pieces % ranks == 0:
        each = pieces // ranks
        return range(rank * each, (rank + 1) * each)
    if ranks % pieces:
        raise ValueError(f"{pieces} pieces cannot be shared out evenly among {ranks} ranks")
    first = rank * pieces // ranks
    return range(first, first + 1)


def key_heads(layout: CacheLayout) -> int:
    """Key heads of a GDN layer, whose convolution has channels [q | k | v]. 0 without such
    layers."""
    values = layout.value_heads * layout.value_dim
    return (layout.conv_channels - values) // (2 * layout.key_dim) if layout.key_dim else 0


def rank_layout(layout: CacheLayout, ranks: int, rank: int) -> CacheLayout:
    """What of a cache one rank keeps: the same pages and slots, with that rank's heads.

    Pure.

    layout: of one rank that has all. What a draft layer carries every rank has. Raises ValueError
    where the heads cannot be shared out.
    """
    keys = len(share(key_heads(layout), ranks, rank))
    values = len(share(layout.value_heads, ranks, rank))
    return replace(
        layout,
        kv_heads=len(share(layout.kv_heads, ranks, rank)),
        conv_channels=2 * keys * layout.key_dim + values * layout.value_dim,
        value_heads=values,
    )
