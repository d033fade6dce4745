"""Rows of e4m3 codes with one scale (a power of two) a row, inside of kernels: bit for bit as
pycache/fp8_rows.py.

The code uses integer operations in place of casts: GPUs before Hopper have no such casts, and
powers of two need no rounding. The kernels of pages and the kernels of transfers share it.
"""

import triton
import triton.language as tl

NAN_SCALE = tl.constexpr(255)


@triton.jit
def largest_bits(values):
    """Return the float32 bits of the largest absolute value of each row, int32 [ROWS]. values:
    float32 [ROWS, COLUMNS]."""
    # For numbers without sign, larger numbers have larger bits; infinity and NaN have the largest.
    return tl.max(values.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 1)


@triton.jit
def row_scale(largest):
    """Return the scale of each row, as the exponent byte of its power of two, int32. largest: from
    largest_bits()."""
    exponent = largest >> 23
    above = ((largest & 0x7FFFFF) > 0x600000).to(tl.int32)
    return tl.where(exponent == 255, NAN_SCALE, tl.maximum(exponent - 8 + above, 1))


@triton.jit
def row_codes(values, scale):
    """Return the e4m3 codes of rows, uint8 [ROWS, COLUMNS]. values: float32 [ROWS, COLUMNS]. scale:
    [ROWS], from row_scale()."""
    factor = ((254 - tl.minimum(scale, 253)) << 23).to(tl.float32, bitcast=True)
    scaled = (values * factor[:, None]).to(tl.int32, bitcast=True)
    size = scaled & 0x7FFFFFFF
    # Round to three bits of mantissa, ties to even, and change from float32's bias to e4m3's.
    normal = ((size + 0x7FFFF + ((size >> 20) & 1)) >> 20) - 960
    # Near 2^14 a float32 has steps of 2^-9, like e4m3 below 2^-6.
    small = (size.to(tl.float32, bitcast=True) + 16384.0).to(tl.int32, bitcast=True) - 0x46800000
    code = tl.where(size < 0x3C800000, small, normal) | ((scaled >> 24) & 0x80)
    # As with a cast, the row is NaN for any codes.
    return tl.where(scale[:, None] == NAN_SCALE, 0x7F, code).to(tl.uint8)


@triton.jit
def row_factor(scale):
    """Return the factor of each row's codes as float32. scale: int32, from row_scale()."""
    bits = tl.where(scale == NAN_SCALE, 0x7FC00000, scale << 23)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def code_numbers(codes):
    """Return the values of e4m3 codes, float32 in the codes' shape. codes: int32 of 0 to 255."""
    size = codes & 0x7F
    normal = (size << 20) + (120 << 23)
    small = (size.to(tl.float32) * 0.001953125).to(tl.int32, bitcast=True)
    bits = tl.where(size < 8, small, normal) | ((codes & 0x80) << 24)
    return bits.to(tl.float32, bitcast=True)
