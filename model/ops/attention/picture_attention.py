"""Attention of a vision tower on a GPU: all patches of one picture attend to all of them.

Two kernels. One rotates queries and keys in place. The other one attends, with float32 sums and an
online softmax. A head is cut into a wide part, a power of two, and a narrow rest. So heads of 72
elements take products of 80, where one part alone would take 128.

A program owns some queries of one head. The order of keys is fixed, so a row's bits depend on the
picture alone. Reference: `apply_rotary`, and torch's scaled_dot_product_attention.
"""

import math

import triton
import triton.language as tl
from torch import Tensor

from tasuki.utils.triton.kernel_spec import KernelSpec

_QUERIES = 128
_KEYS = 64
_WARPS = 8
_STAGES = 4
_TURNED_PATCHES = 8
_LEAST_PART = 16
"""Least number of elements in a part of a head: products of fewer do not exist."""


def rotate_heads(qkv: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Rotate queries and keys in place. qkv [patches, 3, heads, head_dim], contiguous. cos, sin
    [patches, 1, head_dim / 2] float32, contiguous: of the pairs of head halves."""
    patches, _, heads, dim = qkv.shape
    _rotate_heads_kernel[(triton.cdiv(patches, _TURNED_PATCHES), 2 * heads)](
        qkv,
        cos,
        sin,
        patches,
        HEADS=heads,
        HEAD_DIM=dim,
        PATCHES=_TURNED_PATCHES,
        PART=triton.next_power_of_2(dim // 2),
        num_warps=4,
    )


def picture_attention(qkv: Tensor) -> Tensor:
    """Return the outputs [patches, heads, head_dim] of all heads, in qkv's dtype. qkv [patches, 3,
    heads, head_dim], contiguous, with rotated queries and keys."""
    patches, _, heads, dim = qkv.shape
    outputs = qkv.new_empty(patches, heads, dim)
    wide, rest = _parts(dim)
    _picture_attention_kernel[(triton.cdiv(patches, _QUERIES), heads)](
        qkv,
        outputs,
        patches,
        math.log2(math.e) / math.sqrt(dim),
        HEADS=heads,
        HEAD_DIM=dim,
        WIDE=wide,
        REST=rest,
        QUERIES=_QUERIES,
        KEYS=_KEYS,
        num_warps=_WARPS,
        num_stages=_STAGES,
    )
    return outputs


def _parts(dim: int) -> tuple[int, int]:
    """Return the elements of a head's wide part and of its rest; 0: it has none."""
    wide = max(_LEAST_PART, 1 << (dim.bit_length() - 1))
    rest = dim - wide
    return wide, max(_LEAST_PART, int(triton.next_power_of_2(rest))) if rest > 0 else 0


@triton.jit(do_not_specialize=["patches"])
def _rotate_heads_kernel(
    qkv,
    cos,
    sin,
    patches,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PATCHES: tl.constexpr,
    PART: tl.constexpr,
):
    """Rotate one head's queries or keys of some patches. Heads of keys follow those of queries."""
    patch = tl.program_id(0) * PATCHES + tl.arange(0, PATCHES)
    head = tl.program_id(1)
    half: tl.constexpr = HEAD_DIM // 2
    column = tl.arange(0, PART)
    there = (patch < patches)[:, None] & (column < half)[None, :]
    angle = patch.to(tl.int64)[:, None] * half + column[None, :]
    turn = tl.load(cos + angle, mask=there, other=0.0)
    partner_turn = tl.load(sin + angle, mask=there, other=0.0)
    row = patch.to(tl.int64)[:, None] * (3 * HEADS * HEAD_DIM) + head * HEAD_DIM + column[None, :]
    first = tl.load(qkv + row, mask=there, other=0.0).to(tl.float32)
    second = tl.load(qkv + row + half, mask=there, other=0.0).to(tl.float32)
    kind = qkv.dtype.element_ty
    tl.store(qkv + row, (first * turn - second * partner_turn).to(kind), mask=there)
    tl.store(qkv + row + half, (second * turn + first * partner_turn).to(kind), mask=there)


@triton.jit
def _attend(
    queries,
    query_rest,
    keys,
    patches,
    first,
    sums,
    sums_rest,
    largest,
    total,
    scale,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    WIDE: tl.constexpr,
    REST: tl.constexpr,
    KEYS: tl.constexpr,
    CUT: tl.constexpr,
):
    """Attend to the keys from `first` on. keys: address of the head's first key. CUT: some may be
    behind the last patch. Return the new sums, largest score and total weight."""
    stride: tl.constexpr = 3 * HEADS * HEAD_DIM
    token = first + tl.arange(0, KEYS)
    inside = token < patches
    at = token.to(tl.int64) * stride
    wide = tl.arange(0, WIDE)
    values = keys + HEADS * HEAD_DIM
    masked: tl.constexpr = CUT or WIDE > HEAD_DIM
    if masked:
        there = inside[:, None] & (wide < HEAD_DIM)[None, :]
        key = tl.load(keys + at[:, None] + wide[None, :], mask=there, other=0.0)
        value = tl.load(values + at[:, None] + wide[None, :], mask=there, other=0.0)
    else:
        key = tl.load(keys + at[:, None] + wide[None, :])
        value = tl.load(values + at[:, None] + wide[None, :])
    scores = tl.dot(queries, tl.trans(key))
    if REST > 0:
        rest = WIDE + tl.arange(0, REST)
        within = (rest < HEAD_DIM)[None, :] & inside[:, None]
        key_rest = tl.load(keys + at[:, None] + rest[None, :], mask=within, other=0.0)
        value_rest = tl.load(values + at[:, None] + rest[None, :], mask=within, other=0.0)
        scores = tl.dot(query_rest, tl.trans(key_rest), scores)
    if CUT:
        scores = tl.where(inside[None, :], scores, float("-inf"))
    highest = tl.maximum(largest, tl.max(scores, axis=1) * scale)
    weights = tl.exp2(scores * scale - highest[:, None])
    faded = tl.exp2(largest - highest)
    total = total * faded + tl.sum(weights, axis=1)
    weights = weights.to(queries.dtype)
    sums = tl.dot(weights, value, sums * faded[:, None])
    if REST > 0:
        sums_rest = tl.dot(weights, value_rest, sums_rest * faded[:, None])
    return sums, sums_rest, highest, total


@triton.jit(do_not_specialize=["patches"])
def _picture_attention_kernel(
    qkv,
    outputs,
    patches,
    scale,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    WIDE: tl.constexpr,
    REST: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
):
    """Attend with some queries of one head. scale: of scores, times log2(e)."""
    stride: tl.constexpr = 3 * HEADS * HEAD_DIM
    token = tl.program_id(0) * QUERIES + tl.arange(0, QUERIES)
    head = tl.program_id(1)
    inside = (token < patches)[:, None]
    at = token.to(tl.int64)[:, None] * stride + head * HEAD_DIM
    wide = tl.arange(0, WIDE)[None, :]
    queries = tl.load(qkv + at + wide, mask=inside & (wide < HEAD_DIM), other=0.0)
    sums = tl.zeros([QUERIES, WIDE], tl.float32)
    part: tl.constexpr = REST if REST > 0 else 16
    rest = WIDE + tl.arange(0, part)[None, :]
    query_rest = tl.load(qkv + at + rest, mask=inside & (rest < HEAD_DIM), other=0.0)
    sums_rest = tl.zeros([QUERIES, part], tl.float32)
    largest = tl.full([QUERIES], float("-inf"), tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    keys = qkv + HEADS * HEAD_DIM + head * HEAD_DIM
    whole = patches // KEYS * KEYS
    for first in range(0, whole, KEYS):
        sums, sums_rest, largest, total = _attend(
            queries,
            query_rest,
            keys,
            patches,
            first,
            sums,
            sums_rest,
            largest,
            total,
            scale,
            HEADS,
            HEAD_DIM,
            WIDE,
            REST,
            KEYS,
            False,
        )
    if whole < patches:
        sums, sums_rest, largest, total = _attend(
            queries,
            query_rest,
            keys,
            patches,
            whole,
            sums,
            sums_rest,
            largest,
            total,
            scale,
            HEADS,
            HEAD_DIM,
            WIDE,
            REST,
            KEYS,
            True,
        )
    kind = outputs.dtype.element_ty
    target = token.to(tl.int64)[:, None] * (HEADS * HEAD_DIM) + head * HEAD_DIM
    found = (sums / total[:, None]).to(kind)
    tl.store(outputs + target + wide, found, mask=inside & (wide < HEAD_DIM))
    if REST > 0:
        found_rest = (sums_rest / total[:, None]).to(kind)
        tl.store(outputs + target + rest, found_rest, mask=inside & (rest < HEAD_DIM))


def compile_specs() -> list[KernelSpec]:
    """Return both kernels at the sizes of published towers."""
    specs = []
    for heads, dim in ((16, 72), (16, 64)):
        wide, rest = _parts(dim)
        shape = {"HEADS": heads, "HEAD_DIM": dim}
        specs.append(
            KernelSpec.of(
                f"rotate_heads_{dim}",
                _rotate_heads_kernel,
                {**shape, "PATCHES": _TURNED_PATCHES, "PART": triton.next_power_of_2(dim // 2)},
                num_warps=4,
                fp32="cos sin",
            )
        )
        specs.append(
            KernelSpec.of(
                f"picture_attention_{dim}",
                _picture_attention_kernel,
                {**shape, "WIDE": wide, "REST": rest, "QUERIES": _QUERIES, "KEYS": _KEYS},
                _WARPS,
                _STAGES,
            )
        )
    return specs
