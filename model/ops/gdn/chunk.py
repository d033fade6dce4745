"""Interactions among the tokens of each chunk of a prompt, for all chunks together, before the
recurrent states are known.

The cumulative log decay inside a chunk is G. The updates (deltas) D of its tokens solve (I + A) D =
beta (v - exp(G) k S). A[t, s] is beta_t exp(G_t - G_s) times the product of k_t and k_s, for s < t.
This file makes (I + A)^-1 and its product with the scores. A score is exp(G_t - G_s) times the
product of q_t and k_s, for s <= t. `gdn_scan` then gets deltas and read-out from one product per
chunk. Source: Yang et al. (2024), Gated Delta Networks. Reference: the same quantities in
`reference_chunked.py`.
"""

import triton
import triton.language as tl
from torch import Tensor, float32

from tasuki.model.config import DeltaNetConfig
from tasuki.model.weights.layers import GdnWeights
from tasuki.utils.triton.kernel_spec import KernelSpec

from .math import sigmoid, softplus
from .prefill_plan import CHUNK, GdnPrefillPlan

_WARPS = 4
_FLOAT32_WARPS = 16
"""Number of warps for float32. float32 products are unrolled multiplication by multiplication. With
as few warps as for 16-bit types, the compiler would need half a minute."""


def gdn_chunk(
    projected: Tensor, kq: Tensor, weights: GdnWeights, config: DeltaNetConfig, plan: GdnPrefillPlan
) -> tuple[Tensor, Tensor]:
    """Return the tensors `mixers` and `gates` for gdn_scan().

    mixers: [N, value_heads, 2, CHUNK, CHUNK] in kq's dtype, first the inverse of I + A, then the
    scores times this inverse. gates: [N, value_heads, 2, CHUNK] float32, first the cumulative log
    decay, then beta. projected: [T, q | k | v | z | b | a], any row stride. kq: keys and queries
    from `gdn_conv`.
    """
    chunks, heads = kq.shape[0], config.value_heads
    mixers = kq.new_empty(chunks, heads, 2, CHUNK, CHUNK)
    gates = kq.new_empty(chunks, heads, 2, CHUNK, dtype=float32)
    operand = _operand(kq)
    _chunk_kernel[(heads, chunks)](
        projected[:, config.conv_channels + heads * config.value_dim :],
        projected.stride(0),
        kq,
        weights.decay_rate,
        weights.dt_bias,
        plan.chunks,
        mixers,
        gates,
        KEY_HEADS=config.key_heads,
        VALUE_HEADS=heads,
        KEY_DIM=config.key_dim,
        CHUNK=CHUNK,
        OPERAND=operand,
        num_warps=_FLOAT32_WARPS if operand is tl.float32 else _WARPS,
    )
    return mixers, gates


def _operand(activations: Tensor) -> tl.dtype:
    """Return the operand dtype for inverting I + A. Its entries are at most 1, so float16 keeps
    three more bits than bfloat16. For float32 models the dtype is float32, exact."""
    return tl.float32 if activations.dtype == float32 else tl.float16


@triton.jit
def _product(a, b, OPERAND: tl.constexpr):
    return tl.dot(a.to(OPERAND), b.to(OPERAND), input_precision="ieee")


@triton.jit
def _unit_lower_inverse(lower, CHUNK: tl.constexpr, OPERAND: tl.constexpr):
    """Return (I + lower)^-1 of a strictly lower triangular [CHUNK, CHUNK] float32.

    The inverse is made by doubling. If X inverts the diagonal blocks of one size, X - X L X inverts
    those of twice the size. L is the part below X's blocks inside the larger ones. No entry grows
    beyond those of the inverse itself, so repeated keys do no harm. Blocks up to 16 are a batch of
    small products.
    """
    tl.static_assert(CHUNK == 64)
    SMALL: tl.constexpr = 16
    BLOCKS: tl.constexpr = CHUNK // SMALL
    across = tl.arange(0, BLOCKS)
    row = tl.arange(0, SMALL)
    diagonal = (across[:, None] == across[None, :])[:, None, :, None]
    blocks = tl.sum(
        tl.where(diagonal, tl.reshape(lower, [BLOCKS, SMALL, BLOCKS, SMALL]), 0.0), axis=2
    )
    unit = (row[:, None] == row[None, :]).to(tl.float32)[None, :, :]
    solved = unit - tl.where(_below(row, 1)[None, :, :], blocks, 0.0)
    for doubling in tl.static_range(1, 4):
        step = tl.where(_below(row, 2**doubling)[None, :, :], blocks, 0.0)
        solved -= _product(_product(solved, step, OPERAND), solved, OPERAND)
    spread = tl.where(diagonal, solved[:, :, None, :], 0.0)
    inverse = tl.reshape(spread, [CHUNK, CHUNK])
    place = tl.arange(0, CHUNK)
    for doubling in tl.static_range(4, 6):
        step = tl.where(_below(place, 2**doubling), lower, 0.0)
        inverse -= _product(_product(inverse, step, OPERAND), inverse, OPERAND)
    return inverse


@triton.jit
def _below(place, SIZE: tl.constexpr):
    """Return a mask of the elements below the diagonal in each block of 2 SIZE: row in the block's
    second half, column in its first half."""
    block = place // SIZE
    return (block[:, None] == block[None, :] + 1) & (block % 2 == 1)[:, None]


@triton.jit
def _chunk_kernel(
    ba,
    projected_stride,
    kq,
    decay_rate,
    dt_bias,
    chunks,
    mixers,
    gates,
    KEY_HEADS: tl.constexpr,
    VALUE_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    CHUNK: tl.constexpr,
    OPERAND: tl.constexpr,
):
    head = tl.program_id(0)
    chunk = tl.program_id(1).to(tl.int64)
    key_head = head // (VALUE_HEADS // KEY_HEADS)
    first, count = tl.load(chunks + 4 * chunk), tl.load(chunks + 4 * chunk + 1)
    token = tl.arange(0, CHUNK)
    inside = token < count
    tile = token[:, None] * KEY_DIM + tl.arange(0, KEY_DIM)[None, :]
    tile += 2 * (chunk * KEY_HEADS + key_head) * (CHUNK * KEY_DIM)
    rows = ba + (first + token).to(tl.int64) * projected_stride + head
    k = tl.load(kq + tile)
    q = tl.load(kq + tile + CHUNK * KEY_DIM)
    b = tl.load(rows, mask=inside, other=0.0).to(tl.float32)
    a = tl.load(rows + VALUE_HEADS, mask=inside, other=0.0).to(tl.float32)
    log_decay = tl.load(decay_rate + head) * softplus(a + tl.load(dt_bias + head))
    total = tl.cumsum(tl.where(inside, log_decay, 0.0))
    beta = tl.where(inside, sigmoid(b), 0.0)
    at = chunk * VALUE_HEADS + head
    tl.store(gates + at * (2 * CHUNK) + token, total)
    tl.store(gates + at * (2 * CHUNK) + CHUNK + token, beta)

    # Above the diagonal the gap is positive and its exponential may be infinite.
    gap = tl.minimum(total[:, None] - total[None, :], 0.0)
    decay = tl.where(token[:, None] >= token[None, :], tl.exp(gap), 0.0)
    seen = tl.dot(q, tl.trans(k), input_precision="ieee") * decay
    lower = tl.dot(k, tl.trans(k), input_precision="ieee") * decay * beta[:, None]
    lower = tl.where(token[:, None] > token[None, :], lower, 0.0)
    solved = _unit_lower_inverse(lower, CHUNK, OPERAND).to(kq.dtype.element_ty)
    read = tl.dot(seen.to(kq.dtype.element_ty), solved, input_precision="ieee")
    to = mixers + at * (2 * CHUNK * CHUNK) + token[:, None] * CHUNK + token[None, :]
    tl.store(to, solved)
    tl.store(to + CHUNK * CHUNK, read.to(kq.dtype.element_ty))


def compile_specs() -> list[KernelSpec]:
    """Return the specs to compile the kernels ahead of time, for the models 9B, 4B and 35B-A3B in
    bfloat16."""
    sizes = {"KEY_HEADS": 16, "VALUE_HEADS": 32, "KEY_DIM": 128, "CHUNK": CHUNK}
    constants = sizes | {"OPERAND": tl.float16}
    floats = "decay_rate dt_bias gates"
    return [KernelSpec.of("gdn_chunk", _chunk_kernel, constants, _WARPS, fp32=floats, i32="chunks")]
