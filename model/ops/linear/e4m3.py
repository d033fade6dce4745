"""e4m3 codes as numbers in registers, exactly.

Triton turns e4m3 into bf16 by one conversion per number (F2F, 16 per cycle and multiprocessor).
This unit has a quarter of the pace and is slower than memory. Packed instructions turn four at a
time, two instructions per number, and keep up. Reference: the conversion of the language.
"""

import triton
import triton.language as tl

from tasuki.utils.triton.instructions import HAS_INSTRUCTIONS


@triton.jit
def turned(codes, dtype: tl.constexpr):
    """Return codes of any shape, at least four a thread in a row, as dtype."""
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
    """Turn codes two at a time: for a first operand, with a thread's codes in pairs."""
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
