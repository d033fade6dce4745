"""One token's convolution and the scalars of its heads (decay, beta, lengths). Decode steps and
verification of drafts share this code, so both give the same bits.

Device functions only. A window has one block of channels for each column of the convolution, the
oldest token first. `taps` has the same number of blocks, of its weights.
"""

import triton
import triton.language as tl

from .math import sigmoid, softplus


@triton.jit
def conv_taps(weight, channel, exists, WIDTH: tl.constexpr):
    """Return the convolution's weights from weight [channels, WIDTH] as blocks, float32: one block
    for each token of the window."""
    taps = tl.tuple(())
    for tap in tl.static_range(WIDTH):
        loaded = tl.load(weight + channel * WIDTH + tap, mask=exists, other=0.0)
        taps += (loaded.to(tl.float32),)
    return taps


@triton.jit
def conv_columns(window, WIDTH: tl.constexpr):
    """Return stored columns `window` [.., .., at least WIDTH] as float32 blocks, one for each
    token; bits do not change."""
    tap = tl.arange(0, window.shape[2])[None, None, :]
    bits = window.to(tl.float32).to(tl.int32, bitcast=True)
    columns = tl.tuple(())
    for column in tl.static_range(WIDTH):
        own = tl.sum(tl.where(tap == column, bits, 0), axis=2)
        columns += (own.to(tl.float32, bitcast=True),)
    return columns


@triton.jit
def convolved(window, taps, FIRST: tl.constexpr, WIDTH: tl.constexpr):
    """Return the convolution of WIDTH blocks of `window` from block FIRST on, the oldest first, in
    float32."""
    total = window[FIRST].to(tl.float32) * taps[0]
    for tap in tl.static_range(1, WIDTH):
        total = tl.fma(window[FIRST + tap].to(tl.float32), taps[tap], total)
    return total


@triton.jit
def store_scalars(
    to,
    activated,
    head,
    decay,
    beta,
    is_key,
    is_value,
    KEY_HEADS: tl.constexpr,
    VALUE_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
):
    """Store one token's scalars of some heads [HEADS, 1], as in StepInputs. to: address for each
    scalar. activated [HEADS, dim]: convolved heads, rounded as they are stored. decay: (rate, a,
    bias) of the decay gate; beta: value before the sigmoid."""
    rate, a, bias = decay
    numbers = activated.to(tl.float32)
    length = tl.rsqrt(tl.sum(numbers * numbers, axis=1) + 1e-6)[:, None]
    length *= tl.where(head < KEY_HEADS, KEY_DIM**-0.5, 1.0)
    tl.store(to, length, mask=is_key)
    tl.store(to, tl.exp(rate * softplus(a + bias)), mask=is_value)
    tl.store(to + VALUE_HEADS, sigmoid(beta), mask=is_value)
