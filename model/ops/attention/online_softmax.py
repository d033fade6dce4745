"""Softmax over a stream of keys: the step for one tile of keys, shared by the attention kernels.

Scores are in units of log2, so exp2 serves; their scale has the factor log2(e). An output is the
sum of exp2(score - largest) * value. A total is the sum of exp2(score - largest). Source: Milakov
and Gimelshein 2018.
"""

import triton
import triton.language as tl

from tasuki.utils.triton.fp8_rows import NAN_SCALE, largest_bits

LOG2_E = tl.constexpr(1.4426950408889634)
FEW_QUERIES = tl.constexpr(64)
"""Largest number of queries for FP8 keys and values as first operands, converted in registers. With
more queries, the queries are the first operands, as for plain numbers."""
_LEAST_SCORE = tl.constexpr(-1.0e30)
_LEAST_EXPONENT = tl.constexpr(-60.0)


@triton.jit
def take_in(scores, value, output, largest, total):
    """Add one tile of keys to running attention results. scores [M, TILE]: -inf for unseen keys;
    values [TILE, D]. Return the updated output [M, D], largest score and total [M], float32."""
    # A row without a seen key keeps a finite maximum: -inf minus -inf would be NaN.
    higher = tl.maximum(tl.maximum(largest, tl.max(scores, axis=1)), _LEAST_SCORE)
    correction = tl.exp2(largest - higher)
    weights = tl.exp2(scores - higher[:, None])
    total = total * correction + tl.sum(weights, axis=1)
    output = output * correction[:, None]
    output = tl.dot(weights.to(value.dtype), value, output, input_precision="ieee")
    return output, higher, total


@triton.jit
def take_in_rows(scores, codes, scale, output, largest, total):
    """Add one tile of keys as take_in() does, with values stored as codes [TILE, D] times 2^(scale
    - 127). scale: [TILE] int32.

    A value's power of two joins its weight. The products must then not exceed one, because float16
    holds no large numbers. So `largest` is the largest product. For values near zero the power
    counts as 2^-60, so that totals do not overflow.
    """
    exponent = (scale - 127).to(tl.float32)[None, :]
    least = tl.maximum(exponent, _LEAST_EXPONENT)
    higher = tl.maximum(tl.maximum(largest, tl.max(scores + least, axis=1)), _LEAST_SCORE)
    correction = tl.exp2(largest - higher)
    weights = tl.exp2(scores + exponent - higher[:, None])
    undone = ((254 - scale) << 23).to(tl.float32, bitcast=True)
    undone = tl.where(scale == NAN_SCALE, float("nan"), undone)
    total = total * correction + tl.sum(weights * undone[None, :], axis=1)
    output = output * correction[:, None]
    weights = weights.to(codes.dtype)
    if output.shape[0] <= FEW_QUERIES:
        into = tl.trans(output)
        into = tl.dot(tl.trans(codes), tl.trans(weights), into, input_precision="ieee")
        output = tl.trans(into)
    else:
        output = tl.dot(weights, codes, output, input_precision="ieee")
    return output, higher, total


@triton.jit
def as_rows(output, largest, total):
    """Convert results of take_in() to the form of take_in_rows(), in which `largest` is the largest
    product of a weight and a scale."""
    exponent = tl.minimum(tl.maximum((largest_bits(output) >> 23) - 127 - 8, -60), 60)
    undone = ((127 - exponent) << 23).to(tl.float32, bitcast=True)
    return output * undone[:, None], largest + exponent.to(tl.float32), total * undone
