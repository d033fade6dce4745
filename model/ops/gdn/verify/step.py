"""One token of the GDN recurrence, on a head's state in registers. Verification of drafts and folds
(storing states after accepted tokens) share it, so both use the same arithmetic.

Rows of a head's state [value_dim, key_dim] are arranged as [rows, lines, line]: `lines` runs of 128
bytes with `line` elements each. Layout and arithmetic are those of `gdn_decode`.
"""

import triton
import triton.language as tl

from ..state_rounding import line_words, round_state, step_words


def warps_of(most: int, rows: int, key_dim: int) -> int:
    """Return the number of warps, at most `most`, for a program with `rows` rows of a state. Every
    thread then holds four keys of a 128-byte run, as with large heads. A thread sums its own keys
    first, so fewer keys would change the order of sums."""
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
    """Return one kept token's inputs for one head: q, k [lines, line], v [ROWS] from value `first`
    on, decay, beta."""
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
    """Apply one token to a head's state. Return the state [rows, lines, line] after the token, and
    its update [rows]."""
    read = tl.sum(tl.sum(state * k[None, :, :], axis=1), axis=1)
    delta = beta * (v - decay * read)
    return state * decay + delta[:, None, None] * k[None, :, :], delta


@triton.jit
def round_step(
    state,
    delta,
    head,
    tokens,
    first,
    ROWS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    LINE: tl.constexpr,
):
    """Return the rows from `first` on of a head's state, rounded to numbers of bfloat16 as a decode
    step stores them, see row_words(). delta: the rows' updates."""
    keys, upper = line_words(KEY_DIM, LINE)
    rows = step_words(head, tokens, first + tl.arange(0, ROWS), delta)
    return round_state(state, rows[:, None, None], keys, upper)


@triton.jit
def places_of_state(KEY_DIM: tl.constexpr, ROWS: tl.constexpr, LINE: tl.constexpr):
    """Return the offsets, in elements, of ROWS rows of a head's state, arranged as [rows, lines,
    line]."""
    row = tl.arange(0, ROWS)[:, None, None] * KEY_DIM
    line = tl.arange(0, KEY_DIM // LINE)[None, :, None] * LINE
    return row + line + tl.arange(0, LINE)[None, None, :]
