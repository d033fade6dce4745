"""The mixer of 32-bit words for kernels; reference: `word_mix.mixed`."""

import triton
import triton.language as tl

from .word_mix import FACTORS, SHIFTS

_SHIFT_0, _SHIFT_1, _SHIFT_2 = (tl.constexpr(shift) for shift in SHIFTS)
_FACTOR_0, _FACTOR_1 = (tl.constexpr(factor) for factor in FACTORS)


@triton.jit
def mix(word):
    """Return hash words with mixed bits, uint32."""
    word = (word ^ (word >> _SHIFT_0)) * _FACTOR_0
    word = (word ^ (word >> _SHIFT_1)) * _FACTOR_1
    return word ^ (word >> _SHIFT_2)
