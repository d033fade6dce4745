"""Conversion of FP8 codes to numbers in registers, for attention, and the resulting order of
columns.

Pages come as words of four codes, and a thread's part of a word never leaves the thread. Otherwise
bytes would be loaded one by one, or sorted through shared memory. Keys and values are the first
operands of their products. A warp group takes them from registers, two float16 numbers side by
side. So one instruction converts two neighbouring codes. For keys they are two elements of a token,
for values two tokens of an element. Columns therefore have orders of their own: queries are loaded
in `query_elements`, outputs are stored in `head_elements`. Reference: Triton's interpreter, code by
code in the same order.
"""

import triton
import triton.language as tl

from tasuki.utils.triton.instructions import HAS_INSTRUCTIONS


@triton.jit
def query_elements(scales, HEAD_DIM: tl.constexpr):
    """Return the head element loaded into each column of queries. Without scales (plain numbers)
    the order is natural. For FP8 rows it is the order of `key_numbers`."""
    column = tl.arange(0, HEAD_DIM)
    if scales is None:
        return column
    else:
        word = column // 16 * 4 + column // 2 % 4
        return word * 4 + column // 8 % 2 * 2 + column % 2


@triton.jit
def head_elements(scales, HEAD_DIM: tl.constexpr):
    """Return the head element stored from each column of outputs. Without scales (plain numbers)
    the order is natural. For FP8 rows it is the order of `value_numbers`."""
    column = tl.arange(0, HEAD_DIM)
    if scales is None:
        return column
    else:
        return column % (HEAD_DIM // 4) * 4 + column // (HEAD_DIM // 4)


@triton.jit
def key_numbers(words, dtype: tl.constexpr):
    """Convert words of four FP8 codes, int32 [TILE, W], to numbers [TILE, 4 W]. In each 16 columns,
    the first 8 are the lower two codes of four words. The other 8 are the upper two. An
    instruction's threads take its 16 columns in this order."""
    TILE: tl.constexpr = words.shape[0]
    W: tl.constexpr = words.shape[1]
    if HAS_INSTRUCTIONS and dtype == tl.float16:
        lower, upper = tl.inline_asm_elementwise(
            """{
                .reg .b16 low, high;
                mov.b32 {low, high}, $2;
                cvt.rn.f16x2.e4m3x2 $0, low;
                cvt.rn.f16x2.e4m3x2 $1, high;
            }""",
            "=r,=r,r",
            [words],
            dtype=(tl.int32, tl.int32),
            is_pure=True,
            pack=1,
        )
        numbers = tl.join(_halves(lower), _halves(upper))
    else:
        lower = tl.join(_code(words, 0, dtype), _code(words, 1, dtype))
        upper = tl.join(_code(words, 2, dtype), _code(words, 3, dtype))
        numbers = tl.join(lower, upper)
    numbers = numbers.reshape([TILE, W // 4, 4, 2, 2])
    return numbers.permute(0, 1, 4, 2, 3).reshape([TILE, 4 * W])


@triton.jit
def value_numbers(words, dtype: tl.constexpr):
    """Convert words of four FP8 codes, int32 [TILE, W], to numbers [TILE, 4 W]: first the lowest
    codes of all words, then the next ones."""
    TILE: tl.constexpr = words.shape[0]
    W: tl.constexpr = words.shape[1]
    if HAS_INSTRUCTIONS and dtype == tl.float16:
        even, odd = tl.split(words.reshape([TILE // 2, 2, W]).permute(0, 2, 1))
        first, second, third, fourth = tl.inline_asm_elementwise(
            """{
                .reg .b32 lower, upper;
                .reg .b16 a, b, c, d;
                prmt.b32 lower, $4, $5, 0x5140;
                prmt.b32 upper, $4, $5, 0x7362;
                mov.b32 {a, b}, lower;
                mov.b32 {c, d}, upper;
                cvt.rn.f16x2.e4m3x2 $0, a;
                cvt.rn.f16x2.e4m3x2 $1, b;
                cvt.rn.f16x2.e4m3x2 $2, c;
                cvt.rn.f16x2.e4m3x2 $3, d;
            }""",
            "=r,=r,=r,=r,r,r",
            [even, odd],
            dtype=(tl.int32, tl.int32, tl.int32, tl.int32),
            is_pure=True,
            pack=1,
        )
        numbers = _halves(tl.join(tl.join(first, second), tl.join(third, fourth)))
        return numbers.permute(0, 4, 3, 2, 1).reshape([TILE, 4 * W])
    else:
        lower = tl.join(_code(words, 0, dtype), _code(words, 1, dtype))
        upper = tl.join(_code(words, 2, dtype), _code(words, 3, dtype))
        return tl.join(lower, upper).permute(0, 3, 2, 1).reshape([TILE, 4 * W])


@triton.jit
def _code(words, number: tl.constexpr, dtype: tl.constexpr):
    return (words >> 8 * number).to(tl.uint8).to(tl.float8e4nv, bitcast=True).to(dtype)


@triton.jit
def _halves(pairs):
    """Pack pairs of float16 [..., 2] into int32 words, one pair a word."""
    lower = pairs.to(tl.int16).to(tl.float16, bitcast=True)
    return tl.join(lower, (pairs >> 16).to(tl.int16).to(tl.float16, bitcast=True))
