"""Parts of a layer's cache: the tensors of a page and of a slot, and their cuts among ranks.

Pure, immutable values. A family of models declares them; all else derives bytes from them.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, groupby
from math import prod

FP8_ROWS = "fp8"
"""Name of the dtype for rows of e4m3 codes, each row with its own scale (fp8_rows.py)."""
BLOCK_ALIGNMENT = 16
"""Alignment in bytes of a head, and of a whole part, within a block: every transport, digest and
view needs it."""

_STATE_ALIGNMENT = 64


@dataclass(frozen=True)
class Whole:
    """Cut of a part without heads: every rank has all of it."""


@dataclass(frozen=True)
class Heads:
    """Cut by `count` heads: equal, neighbouring runs along the first dimension."""

    count: int


@dataclass(frozen=True)
class Segments:
    """Cut of segments, end to end along the first dimension, each by its own heads. heads: (number
    of heads, rows of a head) of each segment."""

    heads: tuple[tuple[int, int], ...]


Cut = Whole | Heads | Segments


def itemsize(dtype: str) -> int:
    """Return the bytes of one element of this dtype. Raises KeyError for an unknown one."""
    return _SIZES[dtype]


_SIZES = {"float32": 4, "bfloat16": 2, "float16": 2, "int32": 4, "int16": 2, "uint8": 1}


@dataclass(frozen=True)
class Part:
    """Dense tensor of a page or of a slot in one layer.

    name: the part's meaning to its family. shape: elements; the first dimension is cut. With
    FP8_ROWS, a head (or the whole) is its codes, then one scale for each row of the last dimension.
    Raises ValueError if the cut does not divide the first dimension.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    cut: Cut

    def __post_init__(self) -> None:
        rows = self.shape[0]
        match self.cut:
            case Heads(count):
                fits = count > 0 and rows % count == 0
            case Segments(heads):
                fits = sum(count * size for count, size in heads) == rows
                fits &= self.dtype != FP8_ROWS
            case Whole():
                fits = True
        if not fits or prod(self.shape) < 1:
            raise ValueError(f"part {self.name}: {list(self.shape)} is not cut by {self.cut}")

    @cached_property
    def runs(self) -> tuple[tuple[int, int], ...]:
        """Return (heads, bytes of a head) of each run of equal heads, end to end. A whole part is
        one head, which every rank has."""
        match self.cut:
            case Whole():
                return ((1, self._bytes(self.shape[0])),)
            case Heads(count):
                return ((count, self._bytes(self.shape[0] // count)),)
            case Segments(heads):
                return tuple((count, self._bytes(size)) for count, size in heads)

    @cached_property
    def length(self) -> int:
        """Return the part's size in bytes."""
        return sum(count * size for count, size in self.runs)

    @property
    def column_length(self) -> int:
        """Return the part's size in bytes in a slot: padded to the alignment of the next column."""
        return -(-self.length // _STATE_ALIGNMENT) * _STATE_ALIGNMENT

    @property
    def row_bytes(self) -> int:
        """Return the bytes of one row of the stored tensor's first dimension."""
        return self.length // self.tensor[0][0]

    @property
    def tensor(self) -> tuple[tuple[int, ...], str]:
        """Return the shape and the dtype of the stored tensor: of bytes, for FP8 rows."""
        if self.dtype != FP8_ROWS:
            return self.shape, self.dtype
        ((heads, size),) = self.runs
        return (size,) if isinstance(self.cut, Whole) else (heads, size), "uint8"

    def of_rank(self, ranks: int, rank: int) -> "Part":
        """Return the part with this rank's heads. Raises ValueError if they cannot be divided."""
        match self.cut:
            case Whole():
                return self
            case Heads(count):
                cut: Cut = Heads(own := len(share(count, ranks, rank)))
                rows = self.shape[0] // count * own
            case Segments(heads):
                shares = tuple((len(share(count, ranks, rank)), size) for count, size in heads)
                rows, cut = sum(count * size for count, size in shares), Segments(shares)
        return replace(self, shape=(rows, *self.shape[1:]), cut=cut)

    def _bytes(self, rows: int) -> int:
        lines = rows * prod(self.shape[1:-1]) if len(self.shape) > 1 else 1
        width = self.shape[-1] if len(self.shape) > 1 else rows
        return lines * (width + 1 if self.dtype == FP8_ROWS else width * itemsize(self.dtype))

    def __str__(self) -> str:
        return f"{self.name} {list(self.shape)} {self.dtype} {self.cut}"


@dataclass(frozen=True)
class LayerCache:
    """Parts of a layer's cache; layers of one kind share one value.

    A block is the page parts end to end: first those cut by heads, head by head, then the whole
    ones. So a head is one run of bytes over all its parts. kind: name of the kind of layer. Raises
    ValueError if the page parts have unequal numbers of heads or not one row for each head, or if a
    head or a whole part of a page is no multiple of BLOCK_ALIGNMENT.
    """

    kind: str
    page: tuple[Part, ...] = ()
    slot: tuple[Part, ...] = ()

    def __post_init__(self) -> None:
        counts = {part.cut.count for part in self.page if isinstance(part.cut, Heads)}
        if len(counts) > 1:
            raise ValueError(f"{self.kind}: the parts of a page have unequal numbers of heads")
        for part in self.page:
            if not isinstance(part.cut, Whole) and part.cut != Heads(part.shape[0]):
                raise ValueError(f"{self.kind}: {part} is no page part with a row for each head")
            if any(size % BLOCK_ALIGNMENT for _, size in part.runs):
                raise ValueError(f"{self.kind}: {part} is no multiple of {BLOCK_ALIGNMENT} bytes")

    @cached_property
    def by_heads(self) -> tuple[Part, ...]:
        return tuple(part for part in self.page if isinstance(part.cut, Heads))

    @cached_property
    def whole(self) -> tuple[Part, ...]:
        """Return the page parts in the block's tail, without heads."""
        return tuple(part for part in self.page if isinstance(part.cut, Whole))

    @cached_property
    def heads(self) -> int:
        """Return the number of heads in a block; 0 if no part is cut by heads."""
        return self.by_heads[0].runs[0][0] if self.by_heads else 0

    @cached_property
    def head_bytes(self) -> int:
        """Return the bytes of one head in a block, over all parts cut by heads."""
        return sum(part.runs[0][1] for part in self.by_heads)

    @cached_property
    def block_runs(self) -> tuple[tuple[int, int], ...]:
        """Return (heads, bytes of a head) of a block's runs: its heads, then each whole part."""
        heads = ((self.heads, self.head_bytes),) if self.by_heads else ()
        return heads + tuple(run for part in self.whole for run in part.runs)

    @cached_property
    def columns(self) -> tuple[tuple[int, Part], ...]:
        """Return the slot parts, each with its byte offset in the layer's part of a slot."""
        starts = accumulate((part.column_length for part in self.slot), initial=0)
        return tuple(zip(starts, self.slot, strict=False))

    @cached_property
    def page_length(self) -> int:
        """Return the bytes of the block's parts; 0 if the layer has no pages."""
        return sum(part.length for part in self.page)

    def of_rank(self, ranks: int, rank: int) -> "LayerCache":
        """Return the cache with this rank's heads. Raises ValueError if they cannot be divided."""
        page, slot = (
            tuple(part.of_rank(ranks, rank) for part in parts) for parts in (self.page, self.slot)
        )
        return replace(self, page=page, slot=slot)

    def __str__(self) -> str:
        page, slot = (", ".join(map(str, parts)) for parts in (self.page, self.slot))
        return f"{self.kind}({page} / {slot})"


def layers_text(layers: tuple[LayerCache, ...]) -> str:
    """Return the layers as text, with equal neighbours counted: "36 x kind(page parts / slot
    parts)"."""
    runs = ((layer, len([*found])) for layer, found in groupby(layers))
    return ", ".join(f"{count} x {layer}" for layer, count in runs)


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
