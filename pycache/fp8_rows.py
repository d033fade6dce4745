"""Rows of numbers as e4m3 codes and a power of two per row, for pages and for transfers. Reference
implementation of the kernels that do the same on a GPU.

e4m3 has 4 bits of exponent, 3 of mantissa, and 448 as its largest value. A row's scale is the
smallest power of two 2^k with max|x| <= 448 * 2^k, kept as the byte k + 127, as in OCP's MX
formats. Multiplying by it is exact on every device. Encoding decoded rows again changes nothing.

Error: |decoded - x| <= max(|x| / 16, scale / 1024). So it is at most a sixteenth of the row's
largest |x|. An infinite or NaN number makes its whole row NaN, so the fault is visible. A row of
zeros stays zero.

Pure functions; does not know pages, layers or wire formats.
"""

import torch

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


def encode_rows(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Encode values [..., width] of a floating dtype. Return (codes uint8 [..., width], scales
    uint8 [...])."""
    numbers = values.to(torch.float32)
    scales = row_scales(numbers)
    scaled = numbers * _power_of_two(254 - scales.clamp(max=253)).unsqueeze(-1)
    return scaled.to(torch.float8_e4m3fn).view(torch.uint8), scales.to(torch.uint8)


def decode_rows(codes: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Decode the codes and scales of encode_rows(). Return numbers [..., width] of dtype."""
    half = codes.contiguous().view(torch.int8).to(torch.int16)
    half = half.bitwise_left_shift_(_TO_HALF_SHIFT).bitwise_and_(_NO_SIGN_COPY)
    numbers = half.view(torch.float16).to(torch.float32)
    biased = scales.to(torch.int32)
    # Not in one: the largest scale times 256 is no float32.
    factors = torch.where(biased == _NAN_SCALE, torch.nan, _power_of_two(biased))
    return numbers.mul_(_FROM_HALF).mul_(factors.unsqueeze(-1)).to(dtype)


def row_scales(numbers: torch.Tensor) -> torch.Tensor:
    """Return each row's scale as a byte value: the exponent of its power of two plus 127, int32
    [...]; 255 for a row with an infinite or NaN number. numbers: [..., width] float32."""
    # Of numbers without sign, the larger one has the larger bits; so have infinity and NaN.
    largest = (numbers.view(torch.int32) & 0x7FFFFFFF).amax(-1)
    exponent = (largest >> _EXPONENT_SHIFT) & _EXPONENT_MASK
    above = (largest & _MANTISSA_MASK) > _LARGEST_MANTISSA
    scales = (exponent - _E4M3_EXPONENT + above.to(torch.int32)).clamp(min=1)
    return torch.where(exponent == _EXPONENT_MASK, _NAN_SCALE, scales).to(torch.int32)


def _power_of_two(biased: torch.Tensor) -> torch.Tensor:
    """Return 2^(biased - 127) as float32, for int32 `biased` from 1 to 254. Return 0 for `biased`
    0, a value without use in any row."""
    return (biased.to(torch.int32) << _EXPONENT_SHIFT).view(torch.float32)
