"""Offsets and sizes of all parts in an arena, for one rank or several.

Pure, immutable values. Equal layouts are interchangeable.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property

from .parts import LayerCache, Part, layers_text

PAGE_TOKENS = 64
LAYERS = "layers"
"""Name of the text of all parts, compared by two nodes."""
_DTYPES = "--dtype, --kv-dtype, --ssm-dtype"


@dataclass(frozen=True)
class Span:
    """A run of `length` bytes of the arena, from byte `offset`."""

    offset: int
    length: int


@dataclass(frozen=True)
class PlacedPart:
    """One layer's part at `offset` bytes of its block, or of its slot.

    layer: the layer's index in the model. row_stride: bytes between two rows of the stored tensor's
    first dimension; other parts' heads may lie between them.
    """

    layer: int
    part: Part
    offset: int
    row_stride: int

    @property
    def name(self) -> str:
        return self.part.name

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the stored tensor."""
        return self.part.tensor[0]

    @property
    def dtype(self) -> str:
        return self.part.tensor[1]

    @property
    def length(self) -> int:
        """Return the size in bytes of a slot's column."""
        return self.part.column_length

    @property
    def end(self) -> int:
        return self.offset + self.length


@dataclass(frozen=True)
class BlockRegion:
    """One layer's part of a page: a block.

    layer: the layer's index in the model. index: this region's position in the layout's list of
    regions.
    """

    layer: int
    index: int
    cache: LayerCache

    @property
    def length(self) -> int:
        """Return the bytes of the region's parts; a block is as long as the longest region."""
        return self.cache.page_length

    @property
    def parts(self) -> Iterator[PlacedPart]:
        """Yield the block's parts in their places."""
        cache, offset = self.cache, 0
        for part in cache.by_heads:
            yield PlacedPart(self.layer, part, offset, cache.head_bytes)
            offset += part.runs[0][1]
        offset = cache.heads * cache.head_bytes
        for part in cache.whole:
            yield PlacedPart(self.layer, part, offset, part.row_bytes)
            offset += part.length


@dataclass(frozen=True)
class LayoutField:
    """Text of a layout's property, compared by two nodes. flag: command-line flag setting it."""

    name: str
    text: str
    flag: str = ""


@dataclass(frozen=True)
class CacheLayout:
    """Offsets and sizes of all parts in the arena, derived from the layers' declared parts.

    An arena is `slabs` slabs of `blocks_per_slab` blocks of `block_bytes` bytes. A slab holds
    either one state slot or `pages_per_slab` pages. A page has one block in every `BlockRegion`,
    one for each layer with page parts. Pages are region-major: region r of page q is block q + r *
    pages_per_slab. So every view and kernel has the single stride `block_bytes`. In each region,
    the pages of one request in a slab are contiguous. A slot is the columns of all layers end to
    end: one column for each slot part. Views, kernels and copies take their strides only from
    regions and columns.

    Immutable; equal layouts are interchangeable. Derived values are computed once, because a
    destination's check reads them for every page.

    layers: the model's layers, then its draft layers. draft_layers: number of layers for drafting
    tokens. A draft layer's page entry j, at position j >= 1, is made from token j and the final
    hidden state of token j - 1. fields: texts compared by two nodes before they exchange pages;
    empty: the text of all parts. Raises ValueError if no layer has pages.
    """

    layers: tuple[LayerCache, ...]
    draft_layers: int = 0
    fields: tuple[LayoutField, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        if not any(layer.page for layer in self.layers):
            raise ValueError("a cache layout needs a layer with pages")

    @property
    def described(self) -> tuple[LayoutField, ...]:
        """Return the texts compared by two nodes."""
        return self.fields or (LayoutField(LAYERS, layers_text(self.layers), _DTYPES),)

    @cached_property
    def regions(self) -> tuple[BlockRegion, ...]:
        """Return the regions of a page: a block of every layer with page parts, in layer order."""
        paged = [layer for layer, cache in enumerate(self.layers) if cache.page]
        return tuple(
            BlockRegion(layer, index, self.layers[layer]) for index, layer in enumerate(paged)
        )

    @cached_property
    def columns(self) -> tuple[PlacedPart, ...]:
        """Return the columns of a slot, without gaps: every layer's slot parts, in layer order."""
        columns: list[PlacedPart] = []
        offset = 0
        for layer, cache in enumerate(self.layers):
            for begin, part in cache.columns:
                columns.append(PlacedPart(layer, part, offset + begin, part.row_bytes))
            offset = columns[-1].end if columns else 0
        return tuple(columns)

    @cached_property
    def block_bytes(self) -> int:
        """Return the size of a block in bytes: that of the longest region. All blocks have this
        size, so any block can serve any region."""
        return max(region.length for region in self.regions)

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

    @cached_property
    def part_bytes(self) -> dict[str, int]:
        """Return the bytes of each part over all layers, by its holder and name: `page.NAME` of one
        page, `slot.NAME` of one slot."""
        sizes: dict[str, int] = {}
        for layer in self.layers:
            for holder, parts in (("page", layer.page), ("slot", layer.slot)):
                for part in parts:
                    name = f"{holder}.{part.name}"
                    sizes[name] = sizes.get(name, 0) + part.length
        return sizes

    @property
    def page_dtype(self) -> str:
        """Return the dtype of the first page part."""
        return self.regions[0].cache.page[0].dtype

    @property
    def state_dtype(self) -> str:
        """Return the dtype of the largest slot part; "" without slot parts."""
        parts = [column.part for column in self.columns]
        return max(parts, key=lambda part: part.length).dtype if parts else ""

    def block_length(self, layer: int) -> int:
        """Return the bytes sent for a page in one layer; 0 if the layer has no pages."""
        return self.block_bytes if self.layers[layer].page else 0

    def block_rows(self, layer: int) -> tuple[Span, ...]:
        """Return the byte ranges of a block, one for each head and each whole part."""
        return self._block_rows[layer]

    def state_length(self, layer: int) -> int:
        """Return the bytes of one layer's columns in a slot; 0 if the layer has none."""
        return self._state_spans[layer].length if self.layers[layer].slot else 0

    def page_span(self, layer: int, page: int) -> Span:
        """Return the offset and length, in bytes of the arena, of one layer's block in one page.
        REQUIRES: the layer has page parts."""
        first = self._page_spans[layer]
        return Span(first.offset + page * self.block_bytes, first.length)

    def state_span(self, layer: int, slot: int) -> Span:
        """Return the offset and length, in bytes of the arena, of one layer's columns in one slot.
        REQUIRES: the layer has slot parts."""
        first = self._state_spans[layer]
        return Span(first.offset + slot * self.slab_bytes, first.length)

    @cached_property
    def states(self) -> tuple[Span, ...]:
        """Return the byte range of slot 0 of each layer with slot parts, in layer order."""
        return tuple(self._state_spans.values())

    @cached_property
    def longest_row(self) -> int:
        """Return the bytes of the longest block or state of a layer."""
        return max(self.block_bytes, *(span.length for span in self.states), 0)

    @cached_property
    def _page_spans(self) -> dict[int, Span]:
        """Return the byte range of each layer's block in page 0, by layer index."""
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

    @cached_property
    def _block_rows(self) -> tuple[tuple[Span, ...], ...]:
        rows = {cache: _rows(cache) for cache in dict.fromkeys(self.layers)}
        return tuple(rows[cache] for cache in self.layers)

    def valid_page(self, page: int, slabs: int) -> bool:
        """Return true if `page` is a possible page id in an arena of `slabs` slabs."""
        return 0 <= page < slabs * self.blocks_per_slab and (
            page % self.blocks_per_slab < self.pages_per_slab
        )


def _rows(cache: LayerCache) -> tuple[Span, ...]:
    rows: list[Span] = []
    offset = 0
    for heads, size in cache.block_runs:
        rows += (Span(offset + head * size, size) for head in range(heads))
        offset += heads * size
    return tuple(rows)


def rank_layout(layout: CacheLayout, ranks: int, rank: int) -> CacheLayout:
    """Return the cache layout of one rank: the same pages and slots, with only this rank's heads
    and all whole parts.

    Pure. layout: the layout of a single rank with all heads. Raises ValueError if the heads cannot
    be divided evenly.
    """
    parts = {cache: cache.of_rank(ranks, rank) for cache in dict.fromkeys(layout.layers)}
    return replace(layout, layers=tuple(parts[cache] for cache in layout.layers))


class Place(Enum):
    DEVICE = "device"
    """The memory read by the model's layers: a GPU's, or the host's for a model on a CPU."""
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
