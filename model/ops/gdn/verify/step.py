"""One token of the recurrence, on a head's state in registers. Rows with drafts and folds share it,
so both use the same arithmetic.

Rows of a head's state [value_dim, key_dim] are held as [rows, lines, line], with lines of 128
bytes. Layout and arithmetic are those of `gdn_decode`.
"""

import triton
import triton.language as tl


def warps_of(most: int, rows: int, key_dim: int) -> int:
    """Return the warps of a program with `rows` rows of a state, at most `most`. They are few
    enough for every thread to hold four keys of a line, as with large heads. A thread sums its own
    keys first, so fewer keys would give another order."""
    return max(1, min(most, rows * key_dim // (32 * 4)))


@triton.jit
def inputs_of(
    mixed,
    scalars,
    head,
    first,
    ROWS: tl.constexpr,
    KEY_HEADS: tl.constexpr,
    VALUE_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    LINE: tl.constexpr,
):
    """Return q, k [lines, line], v [ROWS] from value `first` on, decay and beta of one head of the
    kept token."""
    LINES: tl.constexpr = KEY_DIM // LINE
    KEYS: tl.constexpr = KEY_HEADS * KEY_DIM
    key_head = head // (VALUE_HEADS // KEY_HEADS)
    line = tl.arange(0, LINES)[:, None] * LINE + tl.arange(0, LINE)[None, :]
    key = mixed + key_head * KEY_DIM + line
    # Other programs may have written them while this one waited.
    q = tl.load(key, cache_modifier=".cg").to(tl.float32)
    q *= tl.load(scalars + key_head, cache_modifier=".cg")
    k = tl.load(key + KEYS, cache_modifier=".cg").to(tl.float32)
    k *= tl.load(scalars + KEY_HEADS + key_head, cache_modifier=".cg")
    value = mixed + 2 * KEYS + head * VALUE_DIM + first + tl.arange(0, ROWS)
    v = tl.load(value, cache_modifier=".cg").to(tl.float32)
    decay = tl.load(scalars + 2 * KEY_HEADS + head, cache_modifier=".cg")
    beta = tl.load(scalars + 2 * KEY_HEADS + VALUE_HEADS + head, cache_modifier=".cg")
    return q, k, v, decay, beta


@triton.jit
def step(state, k, v, decay, beta):
    """Return (the state [rows, lines, line] behind the token, its update [rows])."""
    read = tl.sum(tl.sum(state * k[None, :, :], axis=1), axis=1)
    delta = beta * (v - decay * read)
    return state * decay + delta[:, None, None] * k[None, :, :], delta


@triton.jit
def places_of_state(KEY_DIM: tl.constexpr, ROWS: tl.constexpr, LINE: tl.constexpr):
    """Return the offsets of the elements of ROWS rows of a head's state, [rows, lines, line]."""
    row = tl.arange(0, ROWS)[:, None, None] * KEY_DIM
    line = tl.arange(0, KEY_DIM // LINE)[None, :, None] * LINE
    return row + line + tl.arange(0, LINE)[None, None, :]
