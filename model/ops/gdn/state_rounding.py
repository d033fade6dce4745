"""Rounding of recurrent states to bfloat16 inside kernels. Device functions only.

Reference: `reference_rounding.StateNoise`, of the same bits. The hash is divided for speed: a word
for each row of a head's state and a word for each key are mixed once. Their product is the noise
of two elements.
"""

import torch
import triton
import triton.language as tl

from tasuki.model.ops.word_mix_kernel import mix

from .reference_rounding import KEY_WORDS, LAYER_SHIFT, ROW_STEP

_ROW_STEP = tl.constexpr(ROW_STEP)
_KEY_WORDS = tl.constexpr(KEY_WORDS)
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
    return mix((key % HALF).to(tl.uint32) + _KEY_WORDS) | 1, key >= HALF


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
def step_words(head, tokens, row, update):
    """Return row_words() after a step with these updates of the rows, float32. A row with NaN or
    infinity has such an update too. It gets no noise, because noise would turn NaN into numbers."""
    return tl.where(tl.abs(update) <= _LARGEST, row_words(head, tokens, row), 0)


@triton.jit
def _moved(state, rows, keys, upper):
    """Return the bits of a state plus noise, uint32. rows, keys: words of its elements; upper:
    their halves. All broadcast to the state's shape."""
    word = rows * keys
    noise = tl.where(upper, word >> 16, (word ^ (word >> 16)) & 0xFFFF)
    return state.to(tl.uint32, bitcast=True) + noise


@triton.jit
def round_state(state, rows, keys, upper):
    """Return a state rounded to numbers of bfloat16, float32. Arguments: see _moved(). A row with
    NaN has words of 0."""
    return (_moved(state, rows, keys, upper) & 0xFFFF0000).to(tl.float32, bitcast=True)


@triton.jit
def round_any_state(state, rows, keys, upper):
    """Return round_state() of a state with any numbers: NaN stays NaN."""
    return tl.where(state == state, round_state(state, rows, keys, upper), state)


@triton.jit
def halved_state(state, rows, keys, upper):
    """Return a state rounded to bfloat16. Arguments: see round_state()."""
    halves = (_moved(state, rows, keys, upper) >> 16).to(tl.uint16)
    return halves.to(tl.bfloat16, bitcast=True)
