"""Rows of numbers as fewer bytes: bf16, or fp8 with a power of two a row (pycache/fp8_rows.py, with
its error). The naive twin of row_codec_kernel.py, and what arenas in host memory use.

Encoding what was decoded changes nothing, so that a prefix that travels there and back loses no
more than once. bf16's error is |x| / 256; a number that is not finite stays what it is.

Pure functions; knows rows, not pages, layers or arenas.
Encoded, a unit is its codes [rows, width], then in fp8 its scales [rows], then zeros up to
ALIGNMENT: what a head has of a block where an arena keeps fp8 itself.
"""

from dataclasses import dataclass

import torch

from tasuki.pycache.fp8_rows import decode_rows, encode_rows

from .precision import Precision

ALIGNMENT = 16
"""Bytes: what every transport and the digest want of offsets and lengths."""


@dataclass(frozen=True)
class RowFormat:
    """`rows` rows of `width` numbers of an arena's dtype, as they travel. REQUIRES: not EXACT."""

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
        """values [units, rows, width], a floating dtype; uint8 [units, encoded_bytes]."""
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
        """encoded: as encode() made it; [units, rows, width] of dtype."""
        shape = (len(encoded), self.rows, self.width)
        codes = encoded[:, : self.code_bytes].contiguous()
        if self.precision is Precision.BF16:
            return codes.view(torch.bfloat16).view(shape).to(dtype)
        scales = encoded[:, self.code_bytes : self.code_bytes + self.rows]
        return decode_rows(codes.view(shape), scales, dtype)
