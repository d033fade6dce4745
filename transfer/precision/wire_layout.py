"""Rows and units as sent on the wire: their formats and lengths.

Pure. A unit is a block of KV, or the state of one GDN layer; a row is a part of it with one scale.
Formats know rows; units know a layout.
"""

from dataclasses import dataclass

import torch

from tasuki.pycache.fp8_rows import decode_rows, encode_rows
from tasuki.pycache.layout import CacheLayout, LayerKind, itemsize
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
class WireUnits:
    """Lengths on the wire of a layout's units: a block of KV, and the state of one GDN layer.

    A unit arrives at the beginning of its block or state, so it is never longer. Knows layout and
    precision, but not pages, transfers or the encoder. Immutable.

    kv, state: row formats of one head's share of a block, and of a recurrent state; None: sent
    unchanged. A block's heads are sent one after the other. A row belongs to one token in one head,
    or to one value dimension of the state. A scale covers no more than a row, so page content
    behind the prompt's end affects no other value.
    """

    layout: CacheLayout
    kv: RowFormat | None
    state: RowFormat | None

    @staticmethod
    def of(layout: CacheLayout, precision: WirePrecision) -> "WireUnits":
        """Return the lengths for a layout and a precision. Raises WireError if the precision saves
        nothing over the arena's dtype."""
        _, sides, tokens, width = layout.kv_shape
        value_heads, value_dim, key_dim = layout.ssm_shape
        values = value_heads * value_dim
        states = values * key_dim * itemsize(layout.ssm_dtype)
        return WireUnits(
            layout,
            _format("kv", precision.kv, sides * tokens, width, layout.head_bytes, layout.kv_dtype),
            _format("state", precision.state, values, key_dim, states, layout.ssm_dtype),
        )

    @property
    def layer_kinds(self) -> tuple[LayerKind, ...]:
        return self.layout.layer_kinds

    @property
    def block_bytes(self) -> int:
        if self.kv is None:
            return self.layout.block_bytes
        return self.layout.kv_heads * self.kv.encoded_bytes

    @property
    def carry_bytes(self) -> int:
        """Return the bytes carried over by a draft layer; they are sent unchanged."""
        return self.layout.carry_bytes

    @property
    def state_layer_bytes(self) -> int:
        """Return the sent bytes of one layer's state: the convolution's state first, unchanged."""
        if self.state is None:
            return self.layout.state_layer_bytes
        return self.layout.conv_bytes + self.state.encoded_bytes

    def encoded(self, layer: int) -> bool:
        """Return True if the layer's units are sent encoded. Its units are its blocks, or its
        states if it has no blocks. A draft layer's carried bytes are never encoded."""
        return (self.kv if self.layer_kinds[layer].keeps_pages else self.state) is not None

    @property
    def largest_encoded(self) -> int:
        """Return the bytes of the longest encoded unit; 0 if no units are encoded."""
        return max(
            0 if self.kv is None else self.block_bytes,
            0 if self.state is None else self.state_layer_bytes,
        )


def _format(
    name: str, precision: Precision, rows: int, width: int, held: int, dtype: str
) -> RowFormat | None:
    """Return the row format for this precision; None if it is exact. held: bytes of the same rows
    in an arena, stored as dtype. Raises WireError if the format saves nothing."""
    if precision is Precision.EXACT:
        return None
    made = RowFormat(precision, rows, width)
    if made.encoded_bytes >= held:
        raise WireError(
            f"wire_{name} {precision.value} saves nothing over {dtype}, which the arena holds: "
            "leave it exact"
        )
    return made
