"""Exact conversion of FP8 codes (e4m3) to numbers in registers.

Triton converts e4m3 to bf16 by one F2F instruction per number, 16 per cycle and multiprocessor.
This unit is slower than memory. Packed instructions convert four codes at a time, two instructions
per number, and keep up with memory. Reference: Triton's own conversion.
"""

import triton
import triton.language as tl

from tasuki.utils.triton.instructions import HAS_INSTRUCTIONS


@triton.jit
def turned(codes, dtype: tl.constexpr):
    """Convert e4m3 codes of any shape, at least four per thread in a row, to dtype."""
    if HAS_INSTRUCTIONS and dtype == tl.bfloat16:
        return tl.inline_asm_elementwise(
            """{
                .reg .b16 low, high, a0, a1, b0, b1;
                .reg .b32 a, b;
                .reg .f32 f0, f1, f2, f3;
                mov.b32 {low, high}, $2;
                cvt.rn.f16x2.e4m3x2 a, low;
                cvt.rn.f16x2.e4m3x2 b, high;
                mov.b32 {a0, a1}, a;
                mov.b32 {b0, b1}, b;
                cvt.f32.f16 f0, a0;
                cvt.f32.f16 f1, a1;
                cvt.f32.f16 f2, b0;
                cvt.f32.f16 f3, b1;
                cvt.rn.bf16x2.f32 $0, f1, f0;
                cvt.rn.bf16x2.f32 $1, f3, f2;
            }""",
            "=r,=r,r",
            [codes],
            dtype=tl.bfloat16,
            is_pure=True,
            pack=4,
        )
    else:
        return codes.to(dtype)


@triton.jit
def turned_pairs(codes, dtype: tl.constexpr):
    """Convert e4m3 codes two at a time to dtype, for the first operand of a product: there a thread
    holds codes in pairs."""
    if HAS_INSTRUCTIONS and dtype == tl.bfloat16:
        return tl.inline_asm_elementwise(
            """{
                .reg .b16 a0, a1;
                .reg .b32 a;
                .reg .f32 f0, f1;
                cvt.rn.f16x2.e4m3x2 a, $1;
                mov.b32 {a0, a1}, a;
                cvt.f32.f16 f0, a0;
                cvt.f32.f16 f1, a1;
                cvt.rn.bf16x2.f32 $0, f1, f0;
            }""",
            "=r,h",
            [codes],
            dtype=tl.bfloat16,
            is_pure=True,
            pack=2,
        )
    else:
        return codes.to(dtype)
