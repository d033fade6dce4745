"""Exact conversion of NVFP4 codes (e2m1) to numbers in registers, for weights in the layout of
`model/weights/kernel_layout.py`.

A value is e2m1. Its bits, moved to bf16's exponent and mantissa, are the value times 2^-126. This
takes two instructions per number and no table. The scale of its group of 16, times 2^119, makes
value * group * 2^-7 of it. bf16 holds the product's six significant bits, and 2^-7 lets the largest
scale fit. References: `NvFp4Halves.rows`, and the arithmetic of Triton's interpreter and float32
here.
"""

import triton
import triton.language as tl

from tasuki.utils.triton.instructions import HAS_INSTRUCTIONS

from .fp8_scales import run_sums


@triton.jit
def halves(packed, dtype: tl.constexpr):
    """Convert packed uint8 codes, at least four per thread in a row. Return the numbers of the low
    and of the high halves, in dtype. They are the values, or the values times 2^-126 if
    `group_scales` corrects this factor."""
    if HAS_INSTRUCTIONS and dtype == tl.bfloat16:
        return tl.inline_asm_elementwise(
            """{
                .reg .b32 a, b, s, m;
                prmt.b32 a, $4, 0, 0x1404;
                prmt.b32 b, $4, 0, 0x3424;
                shl.b32 s, a, 4;
                shr.u32 m, a, 2;
                and.b32 s, s, 0x80008000;
                and.b32 m, m, 0x01c001c0;
                or.b32 $0, s, m;
                shl.b32 s, b, 4;
                shr.u32 m, b, 2;
                and.b32 s, s, 0x80008000;
                and.b32 m, m, 0x01c001c0;
                or.b32 $1, s, m;
                shr.u32 m, a, 6;
                and.b32 s, a, 0x80008000;
                and.b32 m, m, 0x01c001c0;
                or.b32 $2, s, m;
                shr.u32 m, b, 6;
                and.b32 s, b, 0x80008000;
                and.b32 m, m, 0x01c001c0;
                or.b32 $3, s, m;
            }""",
            "=&r,=&r,=&r,=&r,r",
            [packed],
            dtype=(tl.bfloat16, tl.bfloat16),
            is_pure=True,
            pack=4,
        )
    else:
        return _number(packed & 15).to(dtype), _number(packed >> 4).to(dtype)


@triton.jit
def _number(code):
    """Return the value of an e2m1 code as float32."""
    exponent, mantissa = ((code >> 1) & 3).to(tl.int32), (code & 1).to(tl.float32)
    whole = (2.0 + mantissa) * (1 << exponent).to(tl.float32)
    size = 0.25 * tl.where(exponent == 0, 2.0 * mantissa, whole)
    return tl.where(code > 7, -size, size)


@triton.jit
def group_scales(groups, dtype: tl.constexpr):
    """Return the scales of groups times 2^-7, float32. They also correct the power of two missing
    from the result of `halves`."""
    if HAS_INSTRUCTIONS and dtype == tl.bfloat16:
        return groups.to(tl.float32) * 6.64613997892458e35
    else:
        return groups.to(tl.float32) * 0.0078125


@triton.jit
def grouped_halves(packed, low, high, dtype: tl.constexpr):
    """Convert packed codes [64, ROWS] to two tiles [64, ROWS] of value * group * 2^-7. low, high
    [4, ROWS] e4m3: scales of the groups in the low and the high halves."""
    ROWS: tl.constexpr = packed.shape[1]
    first, second = halves(packed, dtype)
    low = _each_column(group_scales(low, dtype).to(dtype), ROWS)
    high = _each_column(group_scales(high, dtype).to(dtype), ROWS)
    if HAS_INSTRUCTIONS:
        return first * low, second * high
    else:
        # The interpreter multiplies no bf16.
        first, second = first.to(tl.float32), second.to(tl.float32)
        return (first * low.to(tl.float32)).to(dtype), (second * high.to(tl.float32)).to(dtype)


@triton.jit
def _each_column(scales, ROWS: tl.constexpr):
    """Repeat the scales of groups, [4, ROWS], for each of their 16 columns: [64, ROWS]."""
    return tl.reshape(tl.broadcast_to(scales[:, None, :], [4, 16, ROWS]), [64, ROWS])


@triton.jit
def row_factors(factors, row, height):
    """Return two factors [ROWS] for sums of products with grouped_halves(): the multiplier (with
    the missing 2^7) and the divisor."""
    return tl.load(factors + row) * 128.0, tl.load(factors + height + row)


@triton.jit
def group_products(
    codes, groups, low_inputs, high_inputs, first, height, begin, ROWS: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """Multiply codes by inputs without matrix instructions. Return [ROWS, BYTES / 16] float32: 2^-7
    of the sums of value * group * input over both halves of 16 bytes. codes [ROWS, BYTES]: bytes
    from `begin` on, in the rows from `first` on, of a matrix with `height` rows of WIDE bytes.
    low_inputs, high_inputs [BYTES] float32: inputs for the low and the high halves."""
    RUNS: tl.constexpr = codes.shape[1] // 16
    row = (first + tl.arange(0, ROWS)).to(tl.int64)
    run = begin // 16 + tl.arange(0, RUNS)
    at = groups + row[:, None] * (WIDE // 8) + (run // 4 * 8 + run % 4)[None, :]
    exists = (row < height)[:, None] & (run < WIDE // 16)[None, :]
    low_scales, high_scales = tl.load(at, exists, 0.0), tl.load(at + 4, exists, 0.0)
    low, high = halves(codes, tl.bfloat16)
    low, high = low.to(tl.float32), high.to(tl.float32)
    if HAS_INSTRUCTIONS:
        # Without this, 2^-126 of a value times an input would lose bits of the product.
        low_inputs *= 1.2676506002282294e30
        high_inputs *= 1.2676506002282294e30
    unit: tl.constexpr = 524288.0 if HAS_INSTRUCTIONS else 0.0078125
    return (
        run_sums(low * low_inputs[None, :], 16) * (low_scales.to(tl.float32) * unit)
        + run_sums(high * high_inputs[None, :], 16) * (high_scales.to(tl.float32) * unit)
    )  # fmt: skip
