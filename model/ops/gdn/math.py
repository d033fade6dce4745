"""Element-wise functions shared by the kernels of a GDN layer, all in float32.

Device functions only: no loads, no stores, no shapes.
"""

import triton
import triton.language as tl


@triton.jit
def sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def silu(x):
    return x / (1.0 + tl.exp(-x))


@triton.jit
def softplus(x):
    """Return log(1 + exp(x)), and x itself above 20, as torch does."""
    grown = tl.exp(tl.minimum(x, 20.0))
    rounded = 1.0 + grown
    # The quotient repairs the rounding of 1 + exp(x). Decays near 1 act over thousands of tokens,
    # so a small x must keep its relative precision.
    lost = tl.where(rounded == 1.0, 1.0, rounded - 1.0)
    near = tl.where(rounded == 1.0, grown, tl.log(rounded) * (grown / lost))
    return tl.where(x > 20.0, x, near)
