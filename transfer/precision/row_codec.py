"""Rows of numbers as fewer bytes: bf16, or fp8 with a power of two a row. The naive twin of
row_codec_kernel.py, and what arenas in host memory use.

fp8 is e4m3 (4 bits of exponent, 3 of mantissa, largest value 448). A row's scale is the smallest
power of two 2^k with max|x| <= 448 * 2^k, kept as the byte k + 127, as OCP's MX formats do.
Multiplying by it is exact on every device, and encoding what was decoded changes nothing, so that a
prefix that travels there and back loses no more than once.

Error: |decoded - x| <= max(|x| / 16, scale / 1024), hence at most a sixteenth of the row's largest
|x|; bf16: |x| / 256. A number that is not finite makes its whole row NaN in fp8, and stays what it
is in bf16: it shows, as it would without a codec. A row of zeros stays one.

Pure functions; knows rows, not pages, layers or arenas.
Encoded, a unit is its codes [rows, width], then in fp8 its scales [rows], then zeros up to
ALIGNMENT.
"""

from dataclasses import dataclass

import torch

from .precision import Precision

ALIGNMENT = 16
"""Bytes: what every transport and the digest want of offsets and lengths."""

# Of float32: where its exponent begins, and the part of it that is a mantissa of at most 1.75.
_EXPONENT_SHIFT = 23
_EXPONENT_MASK = 0xFF
_MANTISSA_MASK = 0x7FFFFF
_LARGEST_MANTISSA = 0x600000
_NAN_SCALE = 255
_E4M3_EXPONENT = 8
# e4m3's fields, moved to where float16 has them, are the number times 2^-8.
_TO_HALF_SHIFT = 7
_NO_SIGN_COPY = -0x4001
_FROM_HALF = 256.0


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
        numbers = values.to(torch.float32)
        scales = row_scales(numbers)
        scaled = numbers * _power_of_two(254 - scales.clamp(max=253)).unsqueeze(-1)
        codes.copy_(scaled.to(torch.float8_e4m3fn).reshape(len(values), -1).view(torch.uint8))
        encoded[:, self.code_bytes : self.code_bytes + self.rows].copy_(scales)
        return encoded

    def decode(self, encoded: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """encoded: as encode() made it; [units, rows, width] of dtype."""
        shape = (len(encoded), self.rows, self.width)
        codes = encoded[:, : self.code_bytes].contiguous()
        if self.precision is Precision.BF16:
            return codes.view(torch.bfloat16).view(shape).to(dtype)
        half = codes.view(torch.int8).to(torch.int16)
        half = half.bitwise_left_shift_(_TO_HALF_SHIFT).bitwise_and_(_NO_SIGN_COPY)
        numbers = half.view(torch.float16).view(shape).to(torch.float32)
        scales = encoded[:, self.code_bytes : self.code_bytes + self.rows].to(torch.int32)
        # Not in one: the largest scale times 256 is no float32.
        factors = torch.where(scales == _NAN_SCALE, torch.nan, _power_of_two(scales))
        return numbers.mul_(_FROM_HALF).mul_(factors.unsqueeze(-1)).to(dtype)


def row_scales(numbers: torch.Tensor) -> torch.Tensor:
    """The byte of each row's power of two; numbers [..., rows, width] float32, int32 [..., rows].

    255: the row has a number that is not finite.
    """
    # Of numbers without sign, the larger one has the larger bits; so have infinity and NaN.
    largest = (numbers.view(torch.int32) & 0x7FFFFFFF).amax(-1)
    exponent = (largest >> _EXPONENT_SHIFT) & _EXPONENT_MASK
    above = (largest & _MANTISSA_MASK) > _LARGEST_MANTISSA
    scales = (exponent - _E4M3_EXPONENT + above.to(torch.int32)).clamp(min=1)
    return torch.where(exponent == _EXPONENT_MASK, _NAN_SCALE, scales).to(torch.int32)


def _power_of_two(biased: torch.Tensor) -> torch.Tensor:
    """2^(biased - 127), float32; biased int32 in 1 to 254."""
    return (biased.to(torch.int32) << _EXPONENT_SHIFT).view(torch.float32)
