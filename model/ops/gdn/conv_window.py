"""A token's convolution as decode steps and rows with drafts sum it: both give the same bits.

Device functions only. A window is as many blocks of channels as the convolution is wide, the oldest
token first; `taps` are as many, of its weights.
"""

import triton
import triton.language as tl


@triton.jit
def conv_taps(weight, channel, exists, WIDTH: tl.constexpr):
    """weight [channels, WIDTH]: one block a token of the window, float32."""
    taps = tl.tuple(())
    for tap in tl.static_range(WIDTH):
        loaded = tl.load(weight + channel * WIDTH + tap, mask=exists, other=0.0)
        taps += (loaded.to(tl.float32),)
    return taps


@triton.jit
def conv_columns(window, WIDTH: tl.constexpr):
    """window [.., .., at least WIDTH]: as blocks, float32, bit by bit."""
    tap = tl.arange(0, window.shape[2])[None, None, :]
    bits = window.to(tl.float32).to(tl.int32, bitcast=True)
    columns = tl.tuple(())
    for column in tl.static_range(WIDTH):
        own = tl.sum(tl.where(tap == column, bits, 0), axis=2)
        columns += (own.to(tl.float32, bitcast=True),)
    return columns


@triton.jit
def convolved(window, taps, FIRST: tl.constexpr, WIDTH: tl.constexpr):
    """Of the WIDTH blocks of `window` from FIRST on, the oldest first, float32."""
    total = window[FIRST].to(tl.float32) * taps[0]
    for tap in tl.static_range(1, WIDTH):
        total = tl.fma(window[FIRST + tap].to(tl.float32), taps[tap], total)
    return total
