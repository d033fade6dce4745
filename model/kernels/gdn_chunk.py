"""What the tokens of a chunk do to each other, for all chunks at once, before the states are known.

With cumulative log decay G inside a chunk, the deltas D of its tokens solve (I + A) D = beta (v -
exp(G) k S) where A[t, s] = beta_t exp(G_t - G_s) k_t . k_s for s < t. This file makes (I + A)^-1
and the scores exp(G_t - G_s) q_t . k_s for s <= t; `gdn_scan` applies them chunk after chunk. Twin:
the same quantities in `model.ops.gdn_chunked`.
"""

import triton
import triton.language as tl
from torch import Tensor, float32

from ...pycache.kernel_spec import KernelSpec
from ..config import ModelConfig
from ..weights import GdnWeights
from .gdn_math import sigmoid, softplus
from .gdn_plan import CHUNK, GdnPrefillPlan

_WARPS = 4


def gdn_chunk(
    projected: Tensor, qk: Tensor, weights: GdnWeights, config: ModelConfig, plan: GdnPrefillPlan
) -> tuple[Tensor, Tensor, Tensor]:
    """inverse and scores, both [N, value_heads, CHUNK, CHUNK] in qk's dtype, and gates [N,
    value_heads, 2, CHUNK] float32: cumulative log decay, and beta.

    projected [T, q | k | v | z | b | a], any row stride; qk as `gdn_conv` gives it.
    """
    chunks, heads = qk.shape[0], config.value_heads
    inverse = qk.new_empty(chunks, heads, CHUNK, CHUNK)
    scores = qk.new_empty(chunks, heads, CHUNK, CHUNK)
    gates = qk.new_empty(chunks, heads, 2, CHUNK, dtype=float32)
    _kernel[(config.key_heads, chunks)](
        projected[:, config.conv_channels + heads * config.value_dim :],
        projected.stride(0),
        qk,
        weights.decay_rate,
        weights.dt_bias,
        plan.chunks,
        inverse,
        scores,
        gates,
        KEY_HEADS=config.key_heads,
        VALUE_HEADS=heads,
        KEY_DIM=config.key_dim,
        CHUNK=CHUNK,
        PRECISION=solve_precision(qk),
        num_warps=_WARPS,
    )
    return inverse, scores, gates


def solve_precision(activations: Tensor) -> str:
    """Of dots between float32 operands: exact for float32 models, ten bits where results are
    rounded to eight."""
    return "ieee" if activations.dtype == float32 else "tf32"


@triton.jit
def _unit_lower_inverse(lower, CHUNK: tl.constexpr, PRECISION: tl.constexpr):
    """(I + lower)^-1 of a strictly lower triangular [CHUNK, CHUNK] float32.

    Blocks of 16 on the diagonal by forward substitution, all together; the rest by B - MB + MMB -
    MMMB with M = B times what is below the blocks, which is exact for four blocks: M is nilpotent.
    """
    BLOCK: tl.constexpr = 16
    BLOCKS: tl.constexpr = CHUNK // BLOCK
    across = tl.arange(0, BLOCKS)
    within = tl.arange(0, BLOCK)
    diagonal = (across[:, None] == across[None, :])[:, None, :, None]
    blocks = tl.reshape(lower, [BLOCKS, BLOCK, BLOCKS, BLOCK])
    solved = -tl.sum(tl.where(diagonal, blocks, 0.0), axis=2)
    for row in range(1, BLOCK):
        here = (within == row)[None, :, None]
        known = tl.sum(tl.where(here, solved, 0.0), axis=1)
        known += tl.sum(known[:, :, None] * solved, axis=1)
        solved = tl.where(here, known[:, None, :], solved)
    solved += (within[:, None] == within[None, :]).to(tl.float32)[None, :, :]
    spread = tl.where(diagonal, solved[:, :, None, :], 0.0)
    inverse = tl.reshape(spread, [CHUNK, CHUNK])
    place = tl.arange(0, CHUNK) // BLOCK
    below = tl.where(place[:, None] > place[None, :], lower, 0.0)
    step = tl.dot(inverse, below, input_precision=PRECISION)
    term = inverse
    for _ in tl.static_range(BLOCKS - 1):
        term = -tl.dot(step, term, input_precision=PRECISION)
        inverse += term
    return inverse


@triton.jit
def _kernel(
    ba,
    projected_stride,
    qk,
    decay_rate,
    dt_bias,
    chunks,
    inverse,
    scores,
    gates,
    KEY_HEADS: tl.constexpr,
    VALUE_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    CHUNK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    key_head = tl.program_id(0)
    chunk = tl.program_id(1).to(tl.int64)
    RATIO: tl.constexpr = VALUE_HEADS // KEY_HEADS
    first = tl.load(chunks + 3 * chunk)
    count = tl.load(chunks + 3 * chunk + 1)
    token = tl.arange(0, CHUNK)
    inside = token < count
    tile = token[:, None] * KEY_DIM + tl.arange(0, KEY_DIM)[None, :]
    q_tile = qk + (chunk * 2 * KEY_HEADS + key_head) * (CHUNK * KEY_DIM) + tile
    q = tl.load(q_tile)
    k = tl.load(q_tile + KEY_HEADS * CHUNK * KEY_DIM)
    kk = tl.dot(k, tl.trans(k), input_precision="ieee")
    qk_products = tl.dot(q, tl.trans(k), input_precision="ieee")
    later = token[:, None] > token[None, :]
    square = token[:, None] * CHUNK + token[None, :]
    rows = ba + (first + token).to(tl.int64) * projected_stride
    for member in range(RATIO):
        head = key_head * RATIO + member
        b = tl.load(rows + head, mask=inside, other=0.0).to(tl.float32)
        a = tl.load(rows + VALUE_HEADS + head, mask=inside, other=0.0).to(tl.float32)
        log_decay = tl.load(decay_rate + head) * softplus(a + tl.load(dt_bias + head))
        total = tl.cumsum(tl.where(inside, log_decay, 0.0))
        beta = tl.where(inside, sigmoid(b), 0.0)
        # Above the diagonal the gap is positive and its exponential may be infinite.
        gap = tl.minimum(total[:, None] - total[None, :], 0.0)
        decay = tl.exp(gap)
        lower = tl.where(later, kk * decay * beta[:, None], 0.0)
        solved = _unit_lower_inverse(lower, CHUNK, PRECISION)
        seen = tl.where(token[:, None] >= token[None, :], qk_products * decay, 0.0)
        at = chunk * VALUE_HEADS + head
        tl.store(inverse + at * (CHUNK * CHUNK) + square, solved.to(inverse.dtype.element_ty))
        tl.store(scores + at * (CHUNK * CHUNK) + square, seen.to(scores.dtype.element_ty))
        tl.store(gates + at * (2 * CHUNK) + token, total)
        tl.store(gates + at * (2 * CHUNK) + CHUNK + token, beta)


def compile_specs() -> list[KernelSpec]:
    """9B, 4B and 35B-A3B in bfloat16."""
    return [
        KernelSpec(
            name="gdn_chunk",
            kernel=_kernel,
            signature={
                "ba": "*bf16",
                "projected_stride": "i32:16",
                "qk": "*bf16",
                "decay_rate": "*fp32",
                "dt_bias": "*fp32",
                "chunks": "*i32",
                "inverse": "*bf16",
                "scores": "*bf16",
                "gates": "*fp32",
            },
            constants={
                "KEY_HEADS": 16,
                "VALUE_HEADS": 32,
                "KEY_DIM": 128,
                "CHUNK": CHUNK,
                "PRECISION": "tf32",
            },
            num_warps=_WARPS,
        )
    ]
