"""Rows and units as sent on the wire: their formats and lengths.

Pure. A unit is a block, or the state of one layer; a row is a part of it with one scale. Formats
know rows; units know a layout.
"""

from dataclasses import dataclass
from functools import cached_property
from math import prod

import torch

from tasuki.pycache.fp8_rows import decode_rows, encode_rows
from tasuki.pycache.layout import CacheLayout, Span
from tasuki.pycache.parts import Heads, LayerCache, Part
from tasuki.transfer.errors import TransferError
from tasuki.transfer.settings import Precision, WirePrecision

ALIGNMENT = 16
"""Alignment in bytes of offsets and lengths, needed by every transport and the digest."""


@dataclass(frozen=True)
class RowFormat:
    """Format of rows of numbers in fewer bytes: bf16, or fp8 with a power of two as each row's
    scale (pycache/fp8_rows.py, with its error).

    The naive reference of row_codec_kernel.py, also used by arenas in host memory. Encoding decoded
    rows changes nothing, so a prefix sent there and back loses digits only once. The error of bf16
    is |x| / 256; a number that is not finite stays unchanged. Pure; knows rows, not pages, layers
    or arenas.

    An encoded unit is its codes [rows, width], then in fp8 its scales [rows], then zeros up to
    ALIGNMENT. An fp8 arena stores one head's share of a block in the same form. rows, width: `rows`
    rows of `width` numbers of an arena's dtype. REQUIRES: precision is not EXACT.
    """

    precision: Precision
    rows: int
    width: int

    @property
    def code_bytes(self) -> int:
        return self.rows * self.width * (1 if self.precision is Precision.FP8 else 2)

    @property
    def encoded_bytes(self) -> int:
        scales = self.rows if self.precision is Precision.FP8 else 0
        return -(-(self.code_bytes + scales) // ALIGNMENT) * ALIGNMENT

    def encode(self, values: torch.Tensor) -> torch.Tensor:
        """Return rows encoded in this format, uint8 [units, encoded_bytes]. values: [units, rows,
        width], a floating dtype."""
        encoded = values.new_zeros(len(values), self.encoded_bytes, dtype=torch.uint8)
        codes = encoded[:, : self.code_bytes]
        if self.precision is Precision.BF16:
            codes.copy_(values.to(torch.bfloat16).reshape(len(values), -1).view(torch.uint8))
            return encoded
        made, scales = encode_rows(values)
        codes.copy_(made.reshape(len(values), -1))
        encoded[:, self.code_bytes : self.code_bytes + self.rows].copy_(scales)
        return encoded

    def decode(self, encoded: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return the decoded rows [units, rows, width] of dtype. encoded: a result of encode()."""
        shape = (len(encoded), self.rows, self.width)
        codes = encoded[:, : self.code_bytes].contiguous()
        if self.precision is Precision.BF16:
            return codes.view(torch.bfloat16).view(shape).to(dtype)
        scales = encoded[:, self.code_bytes : self.code_bytes + self.rows]
        return decode_rows(codes.view(shape), scales, dtype)


class WireError(TransferError):
    """Wire settings unusable with this arena."""


@dataclass(frozen=True)
class Piece:
    """Piece of a unit: a part, or one head of it. held: bytes in the arena. form: its row format on
    the wire; None: sent unchanged."""

    part: Part
    held: int
    form: RowFormat | None

    @property
    def sent(self) -> int:
        return self.held if self.form is None else self.form.encoded_bytes


@dataclass(frozen=True)
class UnitForm:
    """Form on the wire of one layer's encoded units: `runs` equal runs, each of pieces end to end.
    A block has a run for each head; a state is one run."""

    runs: int
    pieces: tuple[Piece, ...]

    @cached_property
    def held(self) -> int:
        """Return the bytes of one run in the arena."""
        return sum(piece.held for piece in self.pieces)

    @cached_property
    def sent(self) -> int:
        """Return the bytes of one run on the wire."""
        return sum(piece.sent for piece in self.pieces)

    @property
    def numbers(self) -> int:
        """Return the number of encoded numbers of a unit."""
        forms = (piece.form for piece in self.pieces if piece.form is not None)
        return self.runs * sum(form.rows * form.width for form in forms)


@dataclass(frozen=True)
class WireUnits:
    """Lengths on the wire of a layout's units: the block of a layer, and its state.

    A unit arrives at the beginning of its block or state, so it is never longer. Knows layout and
    precision, but not pages, transfers or the encoder. Immutable.

    Only parts cut by heads are encoded. A block's heads are sent one after the other, and its whole
    parts straight to their places. A layer with pages has an exact state. A row is the last
    dimension of a part. A scale covers no more than a row, so page content behind the prompt's end
    affects no other value. forms: of each layer; None: its units are sent unchanged.
    """

    layout: CacheLayout
    forms: tuple[UnitForm | None, ...]

    @staticmethod
    def of(layout: CacheLayout, precision: WirePrecision) -> "WireUnits":
        """Return the lengths for a layout and a precision. Raises WireError if the precision saves
        nothing over the arena's dtype."""
        forms: dict[LayerCache, UnitForm] = {}
        for cache in dict.fromkeys(layout.layers):
            runs, wanted, columns = 1, precision.state, cache.slot
            if cache.page:
                runs, wanted, columns = cache.heads, precision.kv, cache.by_heads
            form = UnitForm(runs, tuple(_piece(part, wanted, cache) for part in columns))
            if form.numbers:
                forms[cache] = form
        for name, wanted, paged, dtype in (
            ("kv", precision.kv, True, layout.page_dtype),
            ("state", precision.state, False, layout.state_dtype),
        ):
            asked = wanted is not Precision.EXACT
            if asked and not any(bool(cache.page) is paged for cache in forms):
                raise WireError(
                    f"wire_{name} {wanted.value} saves nothing over {dtype}, which the arena "
                    "holds: leave it exact"
                )
        return WireUnits(layout, tuple(forms.get(cache) for cache in layout.layers))

    @property
    def layers(self) -> tuple[LayerCache, ...]:
        return self.layout.layers

    def form(self, layer: int) -> UnitForm | None:
        """Return the form of the layer's units; None if they are sent unchanged. Its units are its
        blocks, or its states if it has no blocks."""
        return self.forms[layer]

    def block_length(self, layer: int) -> int:
        return self._block_lengths[layer]

    @cached_property
    def _block_lengths(self) -> tuple[int, ...]:
        rows = map(self.block_rows, range(len(self.layers)))
        return tuple(sum(row.length for row in of_layer) for of_layer in rows)

    def block_rows(self, layer: int) -> tuple[Span, ...]:
        """Return the byte ranges of a block to be written: encoded heads from the block's
        beginning, then each whole part in its place."""
        rows, form = self.layout.block_rows(layer), self.form(layer)
        if form is None or not rows:
            return rows
        heads = (Span(head * form.sent, form.sent) for head in range(form.runs))
        return (*heads, *rows[form.runs :])

    def state_length(self, layer: int) -> int:
        form = None if self.layers[layer].page else self.form(layer)
        return self.layout.state_length(layer) if form is None else form.sent

    @property
    def largest_encoded(self) -> int:
        """Return the bytes of the longest encoded unit; 0 if no units are encoded."""
        return max((form.runs * form.sent for form in self.forms if form is not None), default=0)


def _piece(part: Part, wanted: Precision, cache: LayerCache) -> Piece:
    """Return the piece for a part of a state, or for one head of a block's part. It is encoded only
    if that saves bytes."""
    rows, held = prod(part.shape[:-1]), part.column_length
    if cache.page:
        rows, held = prod(part.shape[1:-1]), part.row_bytes
    floats = part.dtype in ("float32", "bfloat16", "float16")
    if wanted is not Precision.EXACT and floats and isinstance(part.cut, Heads):
        form = RowFormat(wanted, rows, part.shape[-1])
        if form.encoded_bytes < held:
            return Piece(part, held, form)
    return Piece(part, held, None)
