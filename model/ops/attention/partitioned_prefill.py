"""Causal attention of a prompt forward on a Hopper GPU, by warps with parts of their own.

One warp brings keys and values by the tensor copy engine. Two warp groups own 64 rows of the tile
each, and take turns: one multiplies while the other computes its softmax. Written in Gluon, because
Triton multiplies and computes softmax in turn, and asks for keys too late. The arithmetic and its
order are those of `prefill.py`, so the bits are the same. Only for 16-bit numbers.
"""

from dataclasses import replace

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from tasuki.pycache.layout import PAGE_TOKENS
from tasuki.utils.triton.kernel_spec import KernelSpec

_HOPPER = (9, 0)
_WARPS = 4
_REGISTERS = 168
_ROWS = gl.constexpr(64)
_KEYS = gl.constexpr(PAGE_TOKENS)
_LEAST_SCORE = gl.constexpr(-1.0e30)
_LOG2_E = gl.constexpr(1.4426950408889634)


@gluon.jit
def _load_tiles(
    q, kv, table, row, head, kv_head, first, last, tiles, filled, freed, KV_HEADS: gl.constexpr
):
    """Load queries, then keys and values in the order of use."""
    queries, keys, values = tiles
    ready, k_filled, v_filled = filled
    k_freed, v_freed = freed
    DIM: gl.constexpr = queries.shape[2]
    mbarrier.expect(ready, 2 * _ROWS * DIM * 2)
    for half in gl.static_range(2):
        tma.async_copy_global_to_shared(
            q, [row + half * _ROWS, head * DIM], ready, queries.index(half)
        )
    for tile in range(first, last + 1):
        # Values of the tile before go with the keys of this one.
        count = tile - first
        if tile < last:
            page = gl.load(table + tile)
            place = (page * KV_HEADS + kv_head) * (2 * _KEYS)
            slot = count % 2
            mbarrier.wait(k_freed.index(slot), (count // 2 & 1) ^ 1)
            mbarrier.expect(k_filled.index(slot), _KEYS * DIM * 2)
            tma.async_copy_global_to_shared(kv, [place, 0], k_filled.index(slot), keys.index(slot))
        if tile > first:
            page = gl.load(table + tile - 1)
            place = (page * KV_HEADS + kv_head) * (2 * _KEYS) + _KEYS
            slot = (count - 1) % 2
            mbarrier.wait(v_freed.index(slot), ((count - 1) // 2 & 1) ^ 1)
            mbarrier.expect(v_filled.index(slot), _KEYS * DIM * 2)
            tma.async_copy_global_to_shared(
                kv, [place, 0], v_filled.index(slot), values.index(slot)
            )


@gluon.jit
def _softmax(scores, scale, output, largest, total, layout: gl.constexpr, dtype: gl.constexpr):
    """Take in one tile's scores, before their scale. Return (weights as first operand, output,
    largest, total)."""
    higher = gl.maximum(gl.maximum(largest, gl.max(scores, axis=1) * scale), _LEAST_SCORE)
    correction = gl.exp2(largest - higher)
    # One rounding for both, in every tile: a row's bits do not depend on which tiles are masked.
    weights = gl.exp2(gl.fma(scores, scale, -gl.expand_dims(higher, 1)))
    total = total * correction + gl.sum(weights, axis=1)
    factor = gl.convert_layout(correction, gl.SliceLayout(1, layout))
    output = output * gl.expand_dims(factor, 1)
    operand: gl.constexpr = gl.DotOperandLayout(0, layout, 2)
    return gl.convert_layout(weights.to(dtype), operand), output, higher, total


@gluon.jit
def _seen_scores(scores, tile, position, end, scores_layout: gl.constexpr):
    """Return the scores, -inf where the query sees no such key."""
    key = tile * _KEYS + gl.arange(0, _KEYS, gl.SliceLayout(0, scores_layout))
    row = position + gl.arange(0, _ROWS, gl.SliceLayout(1, scores_layout))
    key = gl.expand_dims(key, 0)
    visible = (key <= gl.expand_dims(row, 1)) & (key < end)
    return gl.where(visible, scores, float("-inf"))


@gluon.jit
def _step(
    tile,
    first,
    full,
    position,
    end,
    scale,
    state,
    queries,
    tiles,
    filled,
    freed,
    turns,
    PART: gl.constexpr,
    TURNS: gl.constexpr,
    scores_layout: gl.constexpr,
    layout: gl.constexpr,
):
    """Multiply the weights of the tile before by its values, and take in this tile's scores."""
    weights, output, largest, total = state
    _, keys, values = tiles
    _, k_filled, v_filled = filled
    k_freed, v_freed = freed
    count = tile - first
    slot, before = count % 2, (count - 1) % 2
    mbarrier.wait(v_filled.index(before), (count - 1) // 2 & 1)
    mbarrier.wait(k_filled.index(slot), count // 2 & 1)
    if TURNS:
        mbarrier.wait(turns.index(PART), ((count - 1) & 1) ^ (1 - PART))
    zeros = gl.zeros([_ROWS, _KEYS], gl.float32, scores_layout)
    output = warpgroup_mma(weights, values.index(before), output, is_async=True)
    scores = warpgroup_mma(
        queries, keys.index(slot).permute((1, 0)), zeros, use_acc=False, is_async=True
    )
    if TURNS:
        mbarrier.arrive(turns.index(1 - PART), count=1)
    output, scores, _ = warpgroup_mma_wait(0, deps=[output, scores, weights])
    mbarrier.arrive(v_freed.index(before), count=1)
    mbarrier.arrive(k_freed.index(slot), count=1)
    if tile >= full:
        scores = _seen_scores(scores, tile, position, end, scores_layout)
    return _softmax(scores, scale, output, largest, total, layout, queries.dtype)


@gluon.jit
def _attend(
    first,
    full,
    last,
    row,
    count,
    position,
    end,
    served,
    head,
    scale,
    earlier,
    sums,
    gate,
    gate_stride,
    output,
    tiles,
    filled,
    freed,
    turns,
    PART: gl.constexpr,
    HEADS: gl.constexpr,
    TURNS: gl.constexpr,
):
    """Attend to the tiles with the rows of one part."""
    queries, keys, values = tiles
    DIM: gl.constexpr = queries.shape[2]
    ready, k_filled, v_filled = filled
    k_freed, _ = freed
    scores_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, _KEYS, 16])
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, DIM, 16])
    lines: gl.constexpr = gl.BlockedLayout([1, 8], [1, 32], [4, 1], [1, 0])
    begin = PART * _ROWS
    row, position = row + begin, position + begin
    own_last = gl.minimum(last, gl.maximum((position + _ROWS + _KEYS - 1) // _KEYS, first + 1))
    own_full = gl.minimum((position + 1) // _KEYS, own_last)
    largest = gl.full([_ROWS], float("-inf"), gl.float32, gl.SliceLayout(1, scores_layout))
    total = gl.zeros([_ROWS], gl.float32, gl.SliceLayout(1, scores_layout))
    started = gl.zeros([_ROWS, DIM], gl.float32, layout)
    if earlier is not None:
        # The earlier keys count as one key, with that score and with that output as its value.
        offset = gl.arange(0, _ROWS, gl.SliceLayout(1, layout))
        there = (begin + offset < count) & (served > 0)
        place = (row + offset).to(gl.int64) * HEADS + head
        column = gl.expand_dims(gl.arange(0, DIM, gl.SliceLayout(0, layout)), 0)
        started = gl.load(
            earlier + gl.expand_dims(place, 1) * DIM + column,
            mask=gl.expand_dims(there, 1),
            other=0.0,
        ).to(gl.float32)
        offset = gl.arange(0, _ROWS, gl.SliceLayout(1, scores_layout))
        there = (begin + offset < count) & (served > 0)
        place = (row + offset).to(gl.int64) * HEADS + head
        largest = gl.load(sums + place, mask=there, other=float("-inf")) * _LOG2_E
        total = gl.where(there, 1.0, 0.0)

    mine = queries.index(PART)
    mbarrier.wait(ready, 0)
    mbarrier.wait(k_filled.index(0), 0)
    scores = gl.zeros([_ROWS, _KEYS], gl.float32, scores_layout)
    scores = warpgroup_mma(mine, keys.index(0).permute((1, 0)), scores, use_acc=False)
    mbarrier.arrive(k_freed.index(0), count=1)
    scores = _seen_scores(scores, first, position, end, scores_layout)
    state = _softmax(scores, scale, started, largest, total, layout, queries.dtype)
    for tile in range(first + 1, own_last):
        state = _step(
            tile,
            first,
            own_full,
            position,
            end,
            scale,
            state,
            mine,
            tiles,
            filled,
            freed,
            turns,
            PART,
            TURNS,
            scores_layout,
            layout,
        )
    if TURNS and PART == 0:
        # The other part may have one tile more. It has taken its turn before by then.
        mbarrier.wait(turns.index(0), ((own_last - first - 1) & 1) ^ 1)
        mbarrier.arrive(turns.index(1), count=1)
    weights, result, largest, total = state
    done = own_last - 1 - first
    slot = done % 2
    mbarrier.wait(v_filled.index(slot), done // 2 & 1)
    if own_last * _KEYS > end:
        # Values not written yet may be NaN. Both parts write the same zeros.
        key = (own_last - 1) * _KEYS + gl.arange(0, _KEYS, gl.SliceLayout(1, lines))
        value = values.index(slot).load(lines)
        values.index(slot).store(gl.where(gl.expand_dims(key < end, 1), value, 0.0))
        fence_async_shared()
        gl.thread_barrier()
    result = warpgroup_mma(weights, values.index(slot), result)

    # Through shared memory, for whole lines of the gate and the output.
    offset = gl.arange(0, _ROWS, gl.SliceLayout(1, lines))
    inside = gl.expand_dims(begin + offset < count, 1)
    place = gl.expand_dims((row + offset).to(gl.int64), 1)
    column = head * DIM + gl.expand_dims(gl.arange(0, DIM, gl.SliceLayout(0, lines)), 0)
    opening = gl.load(gate + place * gate_stride + head * DIM + column, mask=inside, other=0.0)
    mine.store(opening)
    opening = mine.load(layout).to(gl.float32)
    divisor = gl.expand_dims(gl.convert_layout(total, gl.SliceLayout(1, layout)), 1)
    result = result / divisor * (1.0 / (1.0 + gl.exp(-opening)))
    mine.store(result.to(queries.dtype))
    gl.store(output + place * (HEADS * DIM) + column, mine.load(lines), mask=inside)


@gluon.jit(do_not_specialize=["page_table_stride"])
def _partitioned_prefill_kernel(
    q,
    kv,
    page_table,
    page_table_stride,
    tiles,
    earlier,
    sums,
    gate,
    gate_stride,
    output,
    scale,
    HEADS: gl.constexpr,
    GROUP: gl.constexpr,
    HEAD_DIM: gl.constexpr,
    TURNS: gl.constexpr,
):
    head = gl.program_id(0)
    tile = tiles + gl.program_id(1) * 5
    row = gl.load(tile)
    count = gl.load(tile + 1)
    table = page_table + gl.load(tile + 2).to(gl.int64) * page_table_stride
    position = gl.load(tile + 3)
    served = gl.load(tile + 4)
    end = position + count
    first = served // _KEYS
    full = (position + 1) // _KEYS
    last = (end + _KEYS - 1) // _KEYS
    queries = gl.allocate_shared_memory(q.dtype, [2, _ROWS, HEAD_DIM], q.layout)
    keys = gl.allocate_shared_memory(kv.dtype, [2, _KEYS, HEAD_DIM], kv.layout)
    values = gl.allocate_shared_memory(kv.dtype, [2, _KEYS, HEAD_DIM], kv.layout)
    ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    k_filled = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    v_filled = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    k_freed = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    v_freed = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    turns = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    mbarrier.init(ready, count=1)
    for slot in gl.static_range(2):
        mbarrier.init(k_filled.index(slot), count=1)
        mbarrier.init(v_filled.index(slot), count=1)
        mbarrier.init(k_freed.index(slot), count=2)
        mbarrier.init(v_freed.index(slot), count=2)
        mbarrier.init(turns.index(slot), count=1)
    buffers = (queries, keys, values)
    filled = (ready, k_filled, v_filled)
    freed = (k_freed, v_freed)
    gl.warp_specialize(
        [
            (
                _attend,
                (
                    first,
                    full,
                    last,
                    row,
                    count,
                    position,
                    end,
                    served,
                    head,
                    scale,
                    earlier,
                    sums,
                    gate,
                    gate_stride,
                    output,
                    buffers,
                    filled,
                    freed,
                    turns,
                    0,
                    HEADS,
                    TURNS,
                ),
            ),
            (
                _attend,
                (
                    first,
                    full,
                    last,
                    row,
                    count,
                    position,
                    end,
                    served,
                    head,
                    scale,
                    earlier,
                    sums,
                    gate,
                    gate_stride,
                    output,
                    buffers,
                    filled,
                    freed,
                    turns,
                    1,
                    HEADS,
                    TURNS,
                ),
            ),
            (
                _load_tiles,
                (
                    q,
                    kv,
                    table,
                    row,
                    head,
                    head // GROUP,
                    first,
                    last,
                    buffers,
                    filled,
                    freed,
                    HEADS // GROUP,
                ),
            ),
        ],
        [4, 1],
        [240, 24],
    )


def has_partitions(q: Tensor, kv: Tensor) -> bool:
    """Return true if the kernel can attend with these queries [T, query_heads, head_dim]."""
    return (
        q.is_cuda
        and q.dtype is kv.dtype
        and q.element_size() == 2
        and q.shape[2] in (64, 128, 256)
        and torch.cuda.get_device_capability(q.device) == _HOPPER
    )


def partitioned_prefill(
    q: Tensor,
    kv: Tensor,
    page_table: Tensor,
    tiles: Tensor,
    earlier: Tensor | None,
    sums: Tensor | None,
    gate: Tensor,
    gate_stride: int,
    output: Tensor,
    scale: float,
    turns: bool = True,
) -> None:
    tokens, heads, dim = q.shape
    kv_heads = kv.shape[1]
    dtype = gl.bfloat16 if q.dtype is torch.bfloat16 else gl.float16
    layout = _layout(dim, dtype)
    flat = q.view(tokens, heads * dim)
    lines = kv.view(-1, dim)
    _partitioned_prefill_kernel[(heads, len(tiles))](
        TensorDescriptor(flat, list(flat.shape), [heads * dim, 1], [64, dim], layout),
        TensorDescriptor(lines, list(lines.shape), [dim, 1], [64, dim], layout),
        page_table,
        page_table.stride(0),
        tiles,
        earlier,
        sums,
        gate,
        gate_stride,
        output,
        scale,
        HEADS=heads,
        GROUP=heads // kv_heads,
        HEAD_DIM=dim,
        TURNS=turns,
        num_warps=_WARPS,
        maxnreg=_REGISTERS,
    )


def compile_specs() -> list[KernelSpec]:
    """Return the specs to compile the kernel ahead of time, in the shapes of the 9B model."""
    tiles = f"tensordesc<bf16[64, 256],{_layout(256, gl.bfloat16)!r}>"
    constants = {"HEADS": 16, "GROUP": 4, "HEAD_DIM": 256, "TURNS": True}

    def spec(name: str, absent: dict[str, None], fp32: str = "") -> KernelSpec:
        made = KernelSpec.of(
            name,
            _partitioned_prefill_kernel,
            {**constants, **absent},
            _WARPS,
            fp32=fp32,
            i32="page_table tiles",
            q=tiles,
            kv=tiles,
        )
        return replace(made, max_registers=_REGISTERS, capabilities=(90,))

    return [
        spec("attention_partitioned_prefill", {"earlier": None, "sums": None}),
        spec("attention_partitioned_prefill_after_context", {}, "sums"),
    ]


def _layout(columns: int, dtype: gl.dtype) -> gl.NVMMASharedLayout:
    return gl.NVMMASharedLayout.get_default_for([_ROWS.value, columns], dtype)
