"""Rounding of recurrent states to bfloat16 inside kernels. Device functions only.

Reference: `reference_rounding.StateNoise`, of the same bits. The hash is divided for speed: a word
for each row of a head's state and a word for each key are mixed once. Two elements take an
exclusive or, a product and a shift.
"""

import torch
import triton
import triton.language as tl

from tasuki.model.ops.word_mix_kernel import mix

from .reference_rounding import FACTOR, KEY_WORDS, LAYER_SHIFT, ROW_STEP

_ROW_STEP = tl.constexpr(ROW_STEP)
_KEY_WORDS = tl.constexpr(KEY_WORDS)
_FACTOR = tl.constexpr(FACTOR)
_LAYER_SHIFT = tl.constexpr(LAYER_SHIFT)
_LARGEST = tl.constexpr(torch.finfo(torch.float32).max)


@triton.jit
def head_of_layers(layer, head):
    """Return a head's number, counted over layers. head: its number, counted over ranks."""
    return (layer << _LAYER_SHIFT) + head


@triton.jit
def key_words(key, KEY_DIM: tl.constexpr):
    """Return the hash words of keys, uint32, and whether each takes the upper half of its word."""
    HALF: tl.constexpr = KEY_DIM // 2
    return mix((key % HALF).to(tl.uint32) + _KEY_WORDS), key >= HALF


@triton.jit
def line_words(KEY_DIM: tl.constexpr, LINE: tl.constexpr):
    """Return the result of key_words() for keys arranged as [1, lines, line]."""
    LINES: tl.constexpr = KEY_DIM // LINE
    line = tl.arange(0, LINES)[None, :, None]
    element = tl.arange(0, LINE)[None, None, :]
    if LINES == 2:
        # A thread has both lines, so it makes one word for two elements.
        words, _ = key_words(element, KEY_DIM)
        upper = line == 1
    else:
        words, upper = key_words(line * LINE + element, KEY_DIM)
    return words, upper


@triton.jit
def row_words(head, tokens, row):
    """Return the hash words of rows of a head's state, uint32. head: counted over layers and ranks,
    see `StateNoise.origin`. tokens: number of tokens in the state. row: index in value_dim."""
    word = mix(mix(tl.cast(head, tl.uint32)) + tl.cast(tokens, tl.uint32))
    return mix(word + row.to(tl.uint32) * _ROW_STEP)


@triton.jit
def factors(delta):
    """Return the factors of rows with these updates. A row with NaN or infinity gets no noise,
    which would make numbers of NaN."""
    return tl.where(tl.abs(delta) <= _LARGEST, _FACTOR, 0)


@triton.jit
def round_state(state, rows, keys, upper, factor):
    """Return a state, float32, rounded to numbers of bfloat16. rows, keys: words of its elements;
    upper: their halves; factor: from factors(). All broadcast to the state's shape."""
    word = (rows ^ keys) * factor
    noise = tl.where(upper, word >> 16, (word ^ (word >> 16)) & 0xFFFF)
    moved = (state.to(tl.uint32, bitcast=True) + noise) & 0xFFFF0000
    return moved.to(tl.float32, bitcast=True)
