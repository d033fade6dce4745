"""The step of attention from in_proj's result to queries and KV pages: norm, rotary embedding, and
the write into pages. One variant writes keys and values only, another has rotary positions apart.

Queries and keys are normed and rotated, values stay unchanged. Keys and values go straight into
their token's page. In pages of FP8 rows each is codes and its scale, rounded here and nowhere else.
The gate stays in `projected`, for the attention kernels. Reference: `rms_norm` and `apply_rotary`
of model.ops, then the writes of `paged_attention`.

A program owns one token's heads of one kind. Pages without a written token are not touched. The
kernel ahead may not write rows or positions: they are read before it has ended.
"""

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from tasuki.model.config import DeltaNetConfig
from tasuki.model.weights.layers import AttentionWeights
from tasuki.pycache.layout import PAGE_TOKENS
from tasuki.utils.triton.fp8_rows import largest_bits, row_codes, row_scale
from tasuki.utils.triton.instructions import dependent, wait_for_inputs
from tasuki.utils.triton.kernel_spec import KernelSpec

from .page_rows import holds_fp8

_HEADS = 8
_WARPS = 2


@dataclass(frozen=True)
class RopeDeltas:
    """Rotary positions behind pictures. by_token [T] int32 on the device: a token's rotary position
    minus its position, equal on all axes. A negative rotary position counts as 0."""

    by_token: Tensor


@dataclass(frozen=True)
class RopeAxes:
    """Rotary positions among pictures; int32 on the device. positions [3, T]: of each token, on the
    axes frames, rows and columns; rows of unit stride. by_pair [rotary_dim / 2]: axis of each
    rotary pair, 0 to 2. REQUIRES: each position is in the rotary table."""

    positions: Tensor
    by_pair: Tensor


@dataclass(frozen=True)
class TokenPlaces:
    """Positions and pages of a forward's T tokens, the same for every layer; all int32 on the
    device.

    positions: [T], position of each token. owners: [T], row of page_table for each token.
    page_table: [B, pages], page ids, rows of unit stride. rows: [1]; tokens from rows[0] on are
    padding and write nothing. gaps: earlier tokens may be padding too, with a position below 0.
    Their queries are rotated as for position 0, and they write nothing into pages. rope: rotary
    positions; None: equal to `positions`, as in text.
    """

    positions: Tensor
    owners: Tensor
    page_table: Tensor
    rows: Tensor
    gaps: bool = False
    rope: RopeDeltas | RopeAxes | None = None


def qk_norm_rope_gate(
    projected: Tensor,
    weights: AttentionWeights,
    config: DeltaNetConfig,
    rotary: Tensor,
    places: TokenPlaces,
    kv: Tensor,
) -> Tensor:
    """Norm and rotate queries and keys. Return the queries [T, query_heads, head_dim] in
    projected's dtype; write keys and values into the pages kv.

    projected: [T, query_heads x (q, gate) | k | v], any row stride. rotary: angles from
    `rotary_cache`, with every position of `places`. kv: as in page_rows.py, its last dimension of
    unit stride.
    """
    q = projected.new_empty(projected.shape[0], config.query_heads, config.head_dim)
    _launch(projected, q, weights, config, rotary, places, kv)
    return q


def k_norm_rope(
    projected: Tensor,
    weights: AttentionWeights,
    config: DeltaNetConfig,
    rotary: Tensor,
    places: TokenPlaces,
    kv: Tensor,
) -> None:
    """Norm and rotate keys, and write keys and values into pages, without queries. projected: [T, k
    | v]; other arguments as for qk_norm_rope_gate()."""
    _launch(projected, None, weights, config, rotary, places, kv)


def _launch(
    projected: Tensor,
    q: Tensor | None,
    weights: AttentionWeights,
    config: DeltaNetConfig,
    rotary: Tensor,
    places: TokenPlaces,
    kv: Tensor,
) -> None:
    heads = 0 if q is None else config.query_heads
    dim, half = config.head_dim, config.rotary_dim // 2
    # An FP8 head has dense codes, and its scales behind them.
    rows = (PAGE_TOKENS * dim, dim) if holds_fp8(kv) else kv.stride()[2:4]
    turns, turns_stride, axes = _turns(places.rope)
    blocks = triton.cdiv(heads, _HEADS) + triton.cdiv(config.kv_heads, _HEADS)
    _qk_norm_rope_gate_kernel[(projected.shape[0], blocks)](
        projected,
        projected.stride(0),
        weights.q_norm,
        weights.k_norm,
        rotary,
        places.positions,
        turns,
        turns_stride,
        axes,
        places.owners,
        places.page_table,
        places.page_table.stride(0),
        places.rows,
        # Without query heads no program has a query to write.
        kv if q is None else q,
        kv,
        *kv.stride()[:2],
        *rows,
        config.norm_eps,
        QUERY_HEADS=heads,
        KV_HEADS=config.kv_heads,
        HEAD_DIM=dim,
        HALF=half,
        PAGE_TOKENS=PAGE_TOKENS,
        Q_BLOCK=_block(heads),
        KV_BLOCK=_block(config.kv_heads),
        DIM=triton.next_power_of_2(dim),
        PART=triton.next_power_of_2(half),
        GAPS=places.gaps,
        num_warps=_WARPS,
        **dependent(projected),
    )


def _turns(rope: RopeDeltas | RopeAxes | None) -> tuple[Tensor | None, int, Tensor | None]:
    """Return the kernel's three arguments about rotary positions."""
    match rope:
        case None:
            return None, 0, None
        case RopeDeltas():
            return rope.by_token, 0, None
        case RopeAxes():
            return rope.positions, rope.positions.stride(0), rope.by_pair


def _block(heads: int) -> int:
    return min(int(triton.next_power_of_2(max(heads, 1))), _HEADS)


@triton.jit
def _norm_and_rotate(
    stored,
    source,
    target,
    scales,
    inside,
    kept,
    weight,
    angles,
    live,
    eps,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    DIM: tl.constexpr,
    PART: tl.constexpr,
):
    """Norm and rotate the heads `stored`, and write them as numbers or FP8 codes.

    angles: address of the cos of the token's position, or [PART] addresses, one for each pair.

    stored: heads loaded from `source` [HEADS], where `inside` is true. They are written to `target`
    [HEADS] where `kept` is true, and as codes if `scales` [HEADS] for their rows are given. The
    rotated elements are read again, from the nearest cache, as two tiles of rotation partners,
    because an exchange between threads costs more.
    """
    element = tl.arange(0, DIM)
    values = stored.to(tl.float32)
    root = tl.rsqrt(tl.sum(values * values, axis=1) / HEAD_DIM + eps)
    scale = tl.load(weight + element, mask=element < HEAD_DIM, other=0.0)
    normed = (values * root[:, None] * scale[None, :]).to(stored.dtype)
    passes = (element >= 2 * HALF) & (element < HEAD_DIM)
    column = tl.arange(0, PART)
    there = inside[:, None] & (column < HALF)
    # The reference rounds in the same way between norm and rotary.
    first = tl.load(source[:, None] + column, mask=there, other=0.0).to(tl.float32)
    first_scale = tl.load(weight + column, mask=column < HALF, other=0.0)
    first = (first * root[:, None] * first_scale[None, :]).to(stored.dtype).to(tl.float32)
    second = tl.load(source[:, None] + HALF + column, mask=there, other=0.0).to(tl.float32)
    second_scale = tl.load(weight + HALF + column, mask=column < HALF, other=0.0)
    second = (second * root[:, None] * second_scale[None, :]).to(stored.dtype).to(tl.float32)
    cos = tl.load(angles + column, mask=live & (column < HALF), other=0.0)[None, :]
    sin = tl.load(angles + HALF + column, mask=live & (column < HALF), other=0.0)[None, :]
    turned = (first * cos - second * sin).to(stored.dtype)
    partner = (second * cos + first * sin).to(stored.dtype)
    if scales is not None:
        normed = tl.where(passes[None, :], normed.to(tl.float32), 0.0)
        turned = turned.to(tl.float32)
        partner = partner.to(tl.float32)
        largest = tl.maximum(largest_bits(turned), largest_bits(partner))
        byte = row_scale(tl.maximum(largest, largest_bits(normed)))
        normed = row_codes(normed, byte)
        turned = row_codes(turned, byte)
        partner = row_codes(partner, byte)
        tl.store(scales, byte.to(tl.uint8), mask=kept)
    tl.store(target[:, None] + element, normed, mask=kept[:, None] & passes)
    stays = kept[:, None] & (column < HALF)
    tl.store(target[:, None] + column, turned, mask=stays)
    tl.store(target[:, None] + HALF + column, partner, mask=stays)


@triton.jit
def _turned(
    position, turns, turns_stride, axes, token, live, HALF: tl.constexpr, PART: tl.constexpr
):
    """Return the token's rotary position. With axes, return [PART]: each pair has the position on
    its own axis."""
    if turns is None:
        turned = position
    elif axes is None:
        turned = tl.maximum(position + tl.load(turns + token), 0)
    else:
        column = tl.arange(0, PART)
        axis = tl.load(axes + column, mask=column < HALF, other=0).to(tl.int64)
        own = turns + axis * turns_stride + token
        turned = tl.load(own, mask=live & (column < HALF), other=0).to(tl.int64)
    return turned


@triton.jit(do_not_specialize=["page_table_stride", "turns_stride"])
def _qk_norm_rope_gate_kernel(
    projected,
    projected_stride,
    q_norm,
    k_norm,
    rotary,
    positions,
    turns,
    turns_stride,
    axes,
    owners,
    page_table,
    page_table_stride,
    rows,
    q,
    kv,
    page_stride,
    head_stride,
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
    DIM: tl.constexpr,
    PART: tl.constexpr,
    GAPS: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    # Mask the stores instead of returning early: heads load at the same time as `rows`.
    live = token < tl.load(rows)
    position = tl.load(positions + token).to(tl.int64)
    stored = live
    if GAPS:
        stored = live & (position >= 0)
        position = tl.maximum(position, 0)
    turned = _turned(position, turns, turns_stride, axes, token, live, HALF, PART)
    wait_for_inputs(DEPENDENT)
    angles = rotary + turned * (2 * HALF)
    source = projected + token * projected_stride
    element = tl.arange(0, DIM)
    q_blocks: tl.constexpr = (QUERY_HEADS + Q_BLOCK - 1) // Q_BLOCK
    if block < q_blocks:
        head = block * Q_BLOCK + tl.arange(0, Q_BLOCK)
        heads = source + head * (2 * HEAD_DIM)
        queries = (head < QUERY_HEADS)[:, None] & (element < HEAD_DIM)
        _norm_and_rotate(
            tl.load(heads[:, None] + element, mask=queries, other=0.0),
            heads,
            q + (token * QUERY_HEADS + head) * HEAD_DIM,
            None,
            head < QUERY_HEADS,
            (head < QUERY_HEADS) & live,
            q_norm,
            angles,
            live,
            eps,
            HEAD_DIM,
            HALF,
            DIM,
            PART,
        )
    else:
        kv_head = (block - q_blocks) * KV_BLOCK + tl.arange(0, KV_BLOCK)
        inside = kv_head < KV_HEADS
        keys = source + (2 * QUERY_HEADS + kv_head) * HEAD_DIM
        whole = inside[:, None] & (element < HEAD_DIM)
        # Load these before the page lookup, because that is two dependent loads.
        key = tl.load(keys[:, None] + element, mask=whole, other=0.0)
        value = tl.load(keys[:, None] + KV_HEADS * HEAD_DIM + element, mask=whole, other=0.0)
        owner = tl.load(owners + token, mask=stored, other=0).to(tl.int64)
        entry = page_table + owner * page_table_stride + position // PAGE_TOKENS
        page = tl.load(entry, mask=stored, other=0).to(tl.int64)
        block_heads = kv + page * page_stride + kv_head * head_stride
        target = block_heads + (position % PAGE_TOKENS) * token_stride
        if kv.dtype.element_ty == tl.uint8:
            scales = block_heads + 2 * value_stride + position % PAGE_TOKENS
            numbers = value.to(tl.float32)
            byte = row_scale(largest_bits(numbers))
            value = row_codes(numbers, byte)
            tl.store(scales + PAGE_TOKENS, byte.to(tl.uint8), mask=inside & stored)
        else:
            scales = None
        _norm_and_rotate(
            key,
            keys,
            target,
            scales,
            inside,
            inside & stored,
            k_norm,
            angles,
            live,
            eps,
            HEAD_DIM,
            HALF,
            DIM,
            PART,
        )
        tl.store(target[:, None] + value_stride + element, value, mask=whole & stored)


def compile_specs() -> list[KernelSpec]:
    """Return the specs to compile the kernels ahead of time, in the shapes of the 9B model."""
    heads = {"QUERY_HEADS": 16, "KV_HEADS": 4, "HEAD_DIM": 256, "HALF": 32, "PAGE_TOKENS": 64}
    blocks = {"Q_BLOCK": 8, "KV_BLOCK": 4, "DIM": 256, "PART": 32}
    keys_alone = {"QUERY_HEADS": 0, "Q_BLOCK": 1}

    text, behind = {"turns": None, "axes": None}, {"axes": None}

    def spec(
        name: str,
        constants: dict[str, int],
        kv: str = "*bf16",
        rope: dict[str, None] = text,
    ) -> KernelSpec:
        turns = " ".join({"turns", "axes"} - rope.keys())
        return KernelSpec.of(
            name,
            _qk_norm_rope_gate_kernel,
            {**heads, **blocks, "DEPENDENT": True, **rope, **constants},
            _WARPS,
            fp32="q_norm k_norm rotary",
            i32=f"positions owners page_table rows {turns}",
            kv=kv,
        )

    return [
        spec("qk_norm_rope_gate", {"GAPS": False}),
        spec("qk_norm_rope_gate_gaps", {"GAPS": True}),
        spec("k_norm_rope", {"GAPS": False} | keys_alone),
        spec("qk_norm_rope_gate_fp8_rows", {"GAPS": False}, "*u8"),
        spec("qk_norm_rope_gate_gaps_fp8_rows", {"GAPS": True}, "*u8"),
        spec("k_norm_rope_fp8_rows", {"GAPS": False} | keys_alone, "*u8"),
        spec("qk_norm_rope_gate_deltas", {"GAPS": False}, rope=behind),
        spec("qk_norm_rope_gate_deltas_gaps", {"GAPS": True}, rope=behind),
        spec("qk_norm_rope_gate_axes", {"GAPS": False}, rope={}),
        spec("qk_norm_rope_gate_axes_fp8_rows", {"GAPS": False}, "*u8", rope={}),
        spec("k_norm_rope_deltas", {"GAPS": False} | keys_alone, rope=behind),
        spec("k_norm_rope_axes", {"GAPS": False} | keys_alone, rope={}),
    ]
