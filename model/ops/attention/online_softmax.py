"""Softmax over a stream of keys: one step of it, shared by the attention kernels.

Scores are kept in units of log2, so that exp2 serves; their scale holds the factor log2(e).
"""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def attend(q, key, value, output, largest, total, scale):
    """Take in keys and values [TILE, D], all visible: output [M, D], largest, total [M] float32."""
    scores = tl.dot(q, tl.trans(key), input_precision="ieee") * scale
    return _take_in(scores, value, output, largest, total)


@triton.jit
def attend_visible(q, key, value, visible, written, output, largest, total, scale):
    """The same where `visible` [M or 1, TILE]; values where not `written` [TILE] may be NaN."""
    scores = tl.dot(q, tl.trans(key), input_precision="ieee") * scale
    scores = tl.where(visible, scores, float("-inf"))
    value = tl.where(written[:, None], value, 0.0)
    return _take_in(scores, value, output, largest, total)


@triton.jit
def _take_in(scores, value, output, largest, total):
    # A row that has seen no key yet keeps a finite maximum: -inf minus -inf would be NaN.
    higher = tl.maximum(tl.maximum(largest, tl.max(scores, axis=1)), -1.0e30)
    correction = tl.exp2(largest - higher)
    weights = tl.exp2(scores - higher[:, None])
    total = total * correction + tl.sum(weights, axis=1)
    output = output * correction[:, None]
    output = tl.dot(weights.to(value.dtype), value, output, input_precision="ieee")
    return output, higher, total
