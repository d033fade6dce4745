"""Rounding of recurrent states to bfloat16 inside kernels. Device functions only.

Reference: `reference_rounding.StateNoise`, of the same bits. The hash is divided for speed: a word
for each row of a head's state and a word for each key are mixed once. An element takes an exclusive
or, a product and a shift.
"""

import triton
import triton.language as tl

from tasuki.model.ops.word_mix_kernel import mix

from .reference_rounding import FACTOR, KEY_WORDS, LAYER_SHIFT, ROW_STEP

_ROW_STEP = tl.constexpr(ROW_STEP)
_KEY_WORDS = tl.constexpr(KEY_WORDS)
_FACTOR = tl.constexpr(FACTOR)
_LAYER_SHIFT = tl.constexpr(LAYER_SHIFT)


@triton.jit
def head_of_layers(layer, head):
    """Return a head's number, counted over layers. head: its number, counted over ranks."""
    return (layer << _LAYER_SHIFT) + head


@triton.jit
def key_words(key):
    """Return the hash words of keys, uint32."""
    return mix(key.to(tl.uint32) + _KEY_WORDS)


@triton.jit
def row_words(head, tokens, row):
    """Return the hash words of rows of a head's state, uint32. head: counted over layers and ranks,
    see `StateNoise.origin`. tokens: number of tokens in the state. row: index in value_dim."""
    word = mix(mix(tl.cast(head, tl.uint32)) + tl.cast(tokens, tl.uint32))
    return mix(word + row.to(tl.uint32) * _ROW_STEP)


@triton.jit
def round_state(state, rows, keys):
    """Return a state, float32, rounded to numbers of bfloat16. rows, keys: words of its elements,
    of shapes that broadcast to the state's."""
    noise = ((rows ^ keys) * _FACTOR) >> 16
    moved = (state.to(tl.uint32, bitcast=True) + noise) & 0xFFFF0000
    # Noise would make a number of some NaNs.
    return tl.where(state == state, moved.to(tl.float32, bitcast=True), state)
