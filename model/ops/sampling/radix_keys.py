"""Logits as unsigned integers (keys) in the same order, and the cut of a row of logits at one key.

Keys have 32 bits, or 16 for bf16 logits. Both zeros have one key; NaN counts as the lowest float.
"""

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

# Tokens of one program: 16 numbers a thread, all in flight at once.
RUN = 4096
RUN_WARPS = 8


@dataclass(frozen=True)
class Cut:
    """A cut of each row of logits. Tokens with a key above keys[b] remain, and the first left[b] of
    the tokens with exactly this key. keys, left: [B].

    equals [B, runs]: number of tokens with exactly this key in each run of the vocabulary. All are
    int32; keys have unsigned bits.
    """

    keys: Tensor
    left: Tensor
    equals: Tensor


@triton.jit
def key_of(logit, NARROW: tl.constexpr):
    """Return the uint32 keys of logits of any float type. NARROW: 16-bit keys of bf16 logits."""
    # A negative zero becomes a positive one.
    value = logit.to(tl.float32) + 0.0
    value = tl.where(value == value, value, -3.4028235e38)
    bits = value.to(tl.int32, bitcast=True)
    key = ((bits ^ ((bits >> 31) & 0x7FFFFFFF)) ^ -0x80000000).to(tl.uint32, bitcast=True)
    if NARROW:
        key = key >> 16
    return key


@triton.jit
def value_of(key, NARROW: tl.constexpr):
    """Return the float32 logit with this key."""
    if NARROW:
        key = key << 16
    ordered = key.to(tl.int32, bitcast=True) ^ -0x80000000
    bits = ordered ^ ((ordered >> 31) & 0x7FFFFFFF)
    if NARROW:
        bits = bits & -0x10000
    return bits.to(tl.float32, bitcast=True)
