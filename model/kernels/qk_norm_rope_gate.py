"""From attention's in_proj to its queries and its pages: split off the gate, norm, rotate, write.

Queries leave normed and rotated; keys likewise go straight into the page of their token, values as
they are. The gate stays where it is, in `projected`, for the attention kernels to apply. Twin:
`rms_norm` and `apply_rotary` of model.ops, then the writes of `paged_attention`.

A program owns one token's heads of one kind. Pages that no written token lies in are not touched.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...pycache.kernel_spec import KernelSpec
from ..config import ModelConfig
from ..ops.rope import rotary_table
from ..weights import AttentionWeights

_HEADS = 16
_WARPS = 4


@dataclass(frozen=True)
class TokenPlaces:
    """Where T tokens stand, the same for every layer; all int32 on the device.

    positions [T]; owners [T]: the row of page_table of each token; page_table [B, pages], rows of
    unit stride; rows [1]: tokens from rows[0] on are padding, of which nothing is read or written.
    """

    positions: Tensor
    owners: Tensor
    page_table: Tensor
    rows: Tensor


def rotary_cache(config: ModelConfig, positions: int, device: torch.device) -> Tensor:
    """[positions, 2, rotary_dim / 2] float32: cos, then sin, of every position; made at start-up.

    A table gives the oracle's angles to the last bit, and costs a token 1% of the kernel's bytes.
    """
    every = torch.arange(positions, device=device)
    cos, sin = rotary_table(every, config.rotary_dim, config.rope_theta)
    return torch.cat([cos, sin], dim=1).contiguous()


def qk_norm_rope_gate(
    projected: Tensor,
    weights: AttentionWeights,
    config: ModelConfig,
    rotary: Tensor,
    places: TokenPlaces,
    kv: Tensor,
) -> Tensor:
    """Queries [T, query_heads, head_dim] in projected's dtype; keys and values go into kv.

    projected [T, query_heads x (q, gate) | k | v], any row stride; rotary of `rotary_cache`, with
    every position of `places`; kv [pages, 2, page_tokens, kv_heads, head_dim], heads contiguous.
    """
    tokens, heads, dim = projected.shape[0], config.query_heads, config.head_dim
    q = projected.new_empty(tokens, heads, dim)
    half = config.rotary_dim // 2
    q_blocks = triton.cdiv(heads, _HEADS)
    _kernel[(tokens, q_blocks + triton.cdiv(config.kv_heads, _HEADS))](
        projected,
        projected.stride(0),
        weights.q_norm,
        weights.k_norm,
        rotary,
        places.positions,
        places.owners,
        places.page_table,
        places.page_table.stride(0),
        places.rows,
        q,
        kv,
        kv.stride(0),
        kv.stride(1),
        kv.stride(2),
        config.norm_eps,
        QUERY_HEADS=heads,
        KV_HEADS=config.kv_heads,
        HEAD_DIM=dim,
        HALF=half,
        PAGE_TOKENS=kv.shape[2],
        Q_BLOCK=min(triton.next_power_of_2(heads), _HEADS),
        KV_BLOCK=min(triton.next_power_of_2(config.kv_heads), _HEADS),
        PARTS=triton.next_power_of_2(triton.cdiv(dim, half)),
        PART=triton.next_power_of_2(half),
        num_warps=_WARPS,
    )
    return q


@triton.jit
def _rotated(source, weight, angles, part, column, within, inside, eps, HEAD_DIM, HALF):
    """Norm of heads [HEADS, PARTS, PART], then rotary of parts 0 and 1, in float32.

    A head is cut into parts of HALF elements, since rotary turns element i with element i + HALF:
    the partner of an element is at the same column of the other of the first two parts.
    """
    element = part * HALF + column
    stored = tl.load(source + element, mask=inside, other=0.0)
    values = stored.to(tl.float32)
    mean = tl.sum(tl.sum(values * values, axis=2), axis=1) / HEAD_DIM
    root = tl.rsqrt(mean + eps)[:, None, None]
    scale = tl.load(weight + element, mask=within, other=0.0)
    # Rounded as the oracle rounds between norm and rotary.
    normed = (values * root * scale).to(stored.dtype).to(tl.float32)

    across = element + tl.where(part == 0, HALF, -HALF)
    other = tl.load(source + across, mask=inside & (part < 2), other=0.0).to(tl.float32)
    other_scale = tl.load(weight + across, mask=within & (part < 2), other=0.0)
    partner = (other * root * other_scale).to(stored.dtype).to(tl.float32)
    cos = tl.load(angles + column, mask=column < HALF, other=0.0)
    sin = tl.load(angles + HALF + column, mask=column < HALF, other=0.0)
    turned = normed * cos + tl.where(part == 0, -partner, partner) * sin
    return tl.where(part < 2, turned, normed)


@triton.jit
def _write_queries(
    source, q_norm, angles, part, column, within, head, q, token, eps, HEADS, HEAD_DIM, HALF
):
    inside = within & (head < HEADS)
    heads = source + head * (2 * HEAD_DIM)
    result = _rotated(heads, q_norm, angles, part, column, within, inside, eps, HEAD_DIM, HALF)
    target = q + token * (HEADS * HEAD_DIM) + head * HEAD_DIM + part * HALF + column
    tl.store(target, result.to(q.dtype.element_ty), mask=inside)


@triton.jit
def _write_page(
    keys, k_norm, angles, part, column, within, head, line, value_stride, eps, HEADS, HEAD_DIM, HALF
):
    inside = within & (head < HEADS)
    heads = keys + head * HEAD_DIM
    element = part * HALF + column
    value = tl.load(heads + HEADS * HEAD_DIM + element, mask=inside, other=0.0)
    result = _rotated(heads, k_norm, angles, part, column, within, inside, eps, HEAD_DIM, HALF)
    target = line + head * HEAD_DIM + element
    tl.store(target, result.to(line.dtype.element_ty), mask=inside)
    tl.store(target + value_stride, value.to(line.dtype.element_ty), mask=inside)


@triton.jit
def _kernel(
    projected,
    projected_stride,
    q_norm,
    k_norm,
    rotary,
    positions,
    owners,
    page_table,
    page_table_stride,
    rows,
    q,
    kv,
    page_stride,
    value_stride,
    token_stride,
    eps,
    QUERY_HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    PAGE_TOKENS: tl.constexpr,
    Q_BLOCK: tl.constexpr,
    KV_BLOCK: tl.constexpr,
    PARTS: tl.constexpr,
    PART: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    if token >= tl.load(rows):
        return
    position = tl.load(positions + token).to(tl.int64)
    angles = rotary + position * (2 * HALF)
    source = projected + token * projected_stride
    part = tl.arange(0, PARTS)[None, :, None]
    column = tl.arange(0, PART)[None, None, :]
    element = part * HALF + column
    within = (column < HALF) & (element < HEAD_DIM)
    q_blocks: tl.constexpr = (QUERY_HEADS + Q_BLOCK - 1) // Q_BLOCK
    if block < q_blocks:
        head = block * Q_BLOCK + tl.arange(0, Q_BLOCK)[:, None, None]
        _write_queries(
            source,
            q_norm,
            angles,
            part,
            column,
            within,
            head,
            q,
            token,
            eps,
            QUERY_HEADS,
            HEAD_DIM,
            HALF,
        )
    else:
        owner = tl.load(owners + token).to(tl.int64)
        page = tl.load(page_table + owner * page_table_stride + position // PAGE_TOKENS)
        line = page.to(tl.int64) * page_stride + (position % PAGE_TOKENS) * token_stride
        kv_head = (block - q_blocks) * KV_BLOCK + tl.arange(0, KV_BLOCK)[:, None, None]
        _write_page(
            source + 2 * QUERY_HEADS * HEAD_DIM,
            k_norm,
            angles,
            part,
            column,
            within,
            kv_head,
            kv + line,
            value_stride,
            eps,
            KV_HEADS,
            HEAD_DIM,
            HALF,
        )


def compile_specs() -> list[KernelSpec]:
    """In the shape of the 9B model."""
    pointers = {
        "projected": "*bf16",
        "q_norm": "*fp32",
        "k_norm": "*fp32",
        "rotary": "*fp32",
        "positions": "*i32",
        "owners": "*i32",
        "page_table": "*i32",
        "rows": "*i32",
        "q": "*bf16",
        "kv": "*bf16",
    }
    strides = ("projected_stride", "page_table_stride", "page_stride", "value_stride")
    return [
        KernelSpec(
            "qk_norm_rope_gate",
            _kernel,
            pointers | {name: "i32:16" for name in (*strides, "token_stride")} | {"eps": "fp32"},
            {
                "QUERY_HEADS": 16,
                "KV_HEADS": 4,
                "HEAD_DIM": 256,
                "HALF": 32,
                "PAGE_TOKENS": 64,
                "Q_BLOCK": 16,
                "KV_BLOCK": 4,
                "PARTS": 8,
                "PART": 32,
            },
            _WARPS,
        )
    ]
