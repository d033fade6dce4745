"""The scan of a GDN layer's prefill on a Hopper GPU, by warps with parts of their own.

One warp brings a chunk's keys, queries, mixers and values by the tensor copy engine. One warp group
computes. A program's chain of products bounds the scan, so it is written in Gluon. Triton would
load by its computing warps, wait for each product, and multiply queries by zeros. The arithmetic
and its order are those of `scan.py`, so the bits are the same. Activations are bfloat16, states
float32.
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

from tasuki.model.config import DeltaNetConfig
from tasuki.utils.triton.kernel_spec import KernelSpec

from .prefill_plan import CHUNK, GdnPrefillPlan

_HOPPER = (9, 0)
_STAGES = 3
_COLUMNS = 32
_WARPS = 4
_REGISTERS = 168
_DIMS = (128, 128)
"""Dimensions of key and value heads: those of every published model."""
_FLAT = gl.SwizzledSharedLayout(1, 1, 1, [0])


@gluon.jit
def _load_chunks(
    kq,
    mixers,
    v,
    gates,
    first,
    end,
    head,
    key_head,
    column,
    buffers,
    decays,
    filled,
    freed,
    KEY_HEADS: gl.constexpr,
    VALUE_HEADS: gl.constexpr,
    BYTES: gl.constexpr,
):
    """Load the operands of each chunk [first, end) in turn."""
    keys, queries, inverses, scores, values = buffers
    totals, betas, lasts = decays
    STAGES: gl.constexpr = keys.shape[0]
    CHUNK: gl.constexpr = keys.shape[1]
    KEY_DIM: gl.constexpr = keys.shape[2]
    lane: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    token = gl.arange(0, CHUNK, lane)
    for chunk in range(first, end):
        count = chunk - first
        stage = count % STAGES
        ready = filled.index(stage)
        mixer = chunk * VALUE_HEADS + head
        gate = gates + mixer.to(gl.int64) * (2 * CHUNK)
        total, beta = gl.load(gate + token), gl.load(gate + CHUNK + token)
        last = gl.load(gate + CHUNK - 1)
        pair = (chunk * KEY_HEADS + key_head) * (2 * CHUNK)
        mbarrier.wait(freed.index(stage), (count // STAGES & 1) ^ 1)
        mbarrier.expect(ready, BYTES)
        tma.async_copy_global_to_shared(kq, [pair, 0], ready, keys.index(stage))
        tma.async_copy_global_to_shared(kq, [pair + CHUNK, 0], ready, queries.index(stage))
        tma.async_copy_global_to_shared(v, [mixer * CHUNK, column], ready, values.index(stage))
        row = mixer * (2 * CHUNK)
        tma.async_copy_global_to_shared(mixers, [row, 0], ready, inverses.index(stage))
        tma.async_copy_global_to_shared(mixers, [row + CHUNK, 0], ready, scores.index(stage))
        totals.index(stage).store(total)
        betas.index(stage).store(beta)
        lasts.index(stage).store(gl.full([KEY_DIM], last, gl.float32, lane))
        mbarrier.arrive(ready, count=1)


@gluon.jit
def _scan(
    v,
    ssm,
    ssm_stride,
    sequence,
    segments,
    saves,
    first,
    head,
    column,
    buffers,
    decays,
    own,
    filled,
    freed,
    VALUE_HEADS: gl.constexpr,
    VALUE_DIM: gl.constexpr,
):
    """Compute the outputs of each chunk in turn, and store the planned states."""
    keys, queries, inverses, scores, values = buffers
    totals, betas, lasts = decays
    state_operand, missing_operand, kept_operand = own
    STAGES: gl.constexpr = keys.shape[0]
    CHUNK: gl.constexpr = keys.shape[1]
    KEY_DIM: gl.constexpr = keys.shape[2]
    COLUMNS: gl.constexpr = values.shape[2]
    dtype: gl.constexpr = keys.dtype
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
    rows: gl.constexpr = gl.SliceLayout(1, layout)
    key = gl.expand_dims(gl.arange(0, KEY_DIM, rows), 1)
    place = gl.expand_dims(column + gl.arange(0, COLUMNS, gl.SliceLayout(0, layout)), 0)
    state_tile = (head * VALUE_DIM + place) * KEY_DIM + key
    slot = gl.load(sequence + 1).to(gl.int64)
    state = gl.load(ssm + slot * ssm_stride + state_tile).to(gl.float32)
    zeros = gl.zeros([CHUNK, COLUMNS], gl.float32, layout)
    for segment in range(gl.load(sequence + 2), gl.load(sequence + 3)):
        for chunk in range(gl.load(segments + 4 * segment), gl.load(segments + 4 * segment + 1)):
            count = chunk - first
            stage = count % STAGES
            state_operand.store(state.to(dtype))
            fence_async_shared()
            mbarrier.wait(filled.index(stage), count // STAGES & 1)
            known = warpgroup_mma(
                keys.index(stage), state_operand, zeros, use_acc=False, is_async=True
            )
            read = warpgroup_mma(
                queries.index(stage), state_operand, zeros, use_acc=False, is_async=True
            )
            total = totals.index(stage).load(rows)
            beta = gl.expand_dims(betas.index(stage).load(rows), 1)
            value = values.index(stage).load(layout).to(gl.float32)
            fade = gl.expand_dims(gl.exp(total), 1)
            known = warpgroup_mma_wait(1, deps=[known])
            missing_operand.store((beta * (value - fade * known)).to(dtype))
            fence_async_shared()
            deltas = warpgroup_mma(
                inverses.index(stage), missing_operand, zeros, use_acc=False, is_async=True
            )
            inside = warpgroup_mma(
                scores.index(stage), missing_operand, zeros, use_acc=False, is_async=True
            )
            # The chunk before has left its buffers by now.
            tma.store_wait(0)
            mbarrier.arrive(freed.index((count + STAGES - 1) % STAGES), count=1, pred=count > 0)
            state = state * gl.expand_dims(gl.exp(lasts.index(stage).load(rows)), 1)
            last = lasts.index(stage).slice(0, CHUNK).load(rows)
            left = gl.expand_dims(gl.exp(last - total), 1)
            deltas = warpgroup_mma_wait(1, deps=[deltas])
            kept_operand.store((deltas * left).to(dtype))
            fence_async_shared()
            state = warpgroup_mma(
                keys.index(stage).permute((1, 0)), kept_operand, state, is_async=True
            )
            read, inside = warpgroup_mma_wait(1, deps=[read, inside])
            values.index(stage).store((fade * read + inside).to(dtype))
            fence_async_shared()
            gl.thread_barrier()
            tma.async_copy_shared_to_global(
                v, [(chunk * VALUE_HEADS + head) * CHUNK, column], values.index(stage)
            )
            state = warpgroup_mma_wait(0, deps=[state])
        for save in range(gl.load(segments + 4 * segment + 2), gl.load(segments + 4 * segment + 3)):
            target = gl.load(saves + 2 * save + 1).to(gl.int64)
            gl.store(ssm + target * ssm_stride + state_tile, state.to(ssm.dtype.element_ty))
    tma.store_wait(0)


@gluon.jit
def _partitioned_scan_kernel(
    kq,
    v,
    mixers,
    gates,
    ssm,
    ssm_stride,
    sequences,
    segments,
    saves,
    KEY_HEADS: gl.constexpr,
    VALUE_HEADS: gl.constexpr,
    KEY_DIM: gl.constexpr,
    VALUE_DIM: gl.constexpr,
    COLUMNS: gl.constexpr,
    CHUNK: gl.constexpr,
    STAGES: gl.constexpr,
    OPERAND: gl.constexpr,
    FLAT: gl.constexpr,
):
    """Scan COLUMNS columns of one value head of one sequence."""
    head = gl.program_id(1)
    key_head = head // (VALUE_HEADS // KEY_HEADS)
    column = gl.program_id(0) * COLUMNS
    sequence = sequences + 6 * gl.program_id(2)
    first = gl.load(segments + 4 * gl.load(sequence + 2))
    end = gl.load(segments + 4 * (gl.load(sequence + 3) - 1) + 1)
    dtype: gl.constexpr = kq.dtype
    keys = gl.allocate_shared_memory(dtype, [STAGES, CHUNK, KEY_DIM], kq.layout)
    queries = gl.allocate_shared_memory(dtype, [STAGES, CHUNK, KEY_DIM], kq.layout)
    inverses = gl.allocate_shared_memory(dtype, [STAGES, CHUNK, CHUNK], mixers.layout)
    scores = gl.allocate_shared_memory(dtype, [STAGES, CHUNK, CHUNK], mixers.layout)
    values = gl.allocate_shared_memory(dtype, [STAGES, CHUNK, COLUMNS], v.layout)
    own = (
        gl.allocate_shared_memory(dtype, [KEY_DIM, COLUMNS], OPERAND),
        gl.allocate_shared_memory(dtype, [CHUNK, COLUMNS], OPERAND),
        gl.allocate_shared_memory(dtype, [CHUNK, COLUMNS], OPERAND),
    )
    decays = (
        gl.allocate_shared_memory(gl.float32, [STAGES, CHUNK], FLAT),
        gl.allocate_shared_memory(gl.float32, [STAGES, CHUNK], FLAT),
        gl.allocate_shared_memory(gl.float32, [STAGES, KEY_DIM], FLAT),
    )
    filled = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    freed = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(filled.index(stage), count=2)
        mbarrier.init(freed.index(stage), count=1)
    buffers = (keys, queries, inverses, scores, values)
    gl.warp_specialize(
        [
            (
                _scan,
                (
                    v,
                    ssm,
                    ssm_stride,
                    sequence,
                    segments,
                    saves,
                    first,
                    head,
                    column,
                    buffers,
                    decays,
                    own,
                    filled,
                    freed,
                    VALUE_HEADS,
                    VALUE_DIM,
                ),
            ),
            (
                _load_chunks,
                (
                    kq,
                    mixers,
                    v,
                    gates,
                    first,
                    end,
                    head,
                    key_head,
                    column,
                    buffers,
                    decays,
                    filled,
                    freed,
                    KEY_HEADS,
                    VALUE_HEADS,
                    2 * CHUNK * (2 * KEY_DIM + 2 * CHUNK + COLUMNS),
                ),
            ),
        ],
        [1],
        [40],
    )


def has_partitions(kq: Tensor, v: Tensor, ssm: Tensor) -> bool:
    """Return True if the kernel can scan these keys, queries and values of gdn_conv() into these
    states. States in bfloat16 are rounded by another kernel."""
    return (
        kq.is_cuda
        and kq.dtype is torch.bfloat16
        and ssm.dtype is torch.float32
        and (kq.shape[4], v.shape[3]) == _DIMS
        and torch.cuda.get_device_capability(kq.device) == _HOPPER
    )


def partitioned_scan(
    kq: Tensor,
    v: Tensor,
    mixers: Tensor,
    gates: Tensor,
    config: DeltaNetConfig,
    ssm: Tensor,
    plan: GdnPrefillPlan,
) -> None:
    """Scan as gdn_scan() does. REQUIRES: has_partitions()."""
    grid = (config.value_dim // _COLUMNS, config.value_heads, plan.sequences.shape[0])
    _partitioned_scan_kernel[grid](
        _tiles(kq, config.key_dim),
        _tiles(v, _COLUMNS),
        _tiles(mixers, CHUNK),
        gates,
        ssm,
        ssm.stride(0),
        plan.sequences,
        plan.segments,
        plan.saves,
        KEY_HEADS=config.key_heads,
        VALUE_HEADS=config.value_heads,
        KEY_DIM=config.key_dim,
        VALUE_DIM=config.value_dim,
        COLUMNS=_COLUMNS,
        CHUNK=CHUNK,
        STAGES=_STAGES,
        OPERAND=_layout(_COLUMNS),
        FLAT=_FLAT,
        num_warps=_WARPS,
        maxnreg=_REGISTERS,
    )


def _tiles(rows: Tensor, columns: int) -> TensorDescriptor:
    """Return a descriptor of tiles [CHUNK, columns] of the rows, the last dimension."""
    flat = rows.view(-1, rows.shape[-1])
    layout = _layout(columns)
    return TensorDescriptor(flat, list(flat.shape), list(flat.stride()), [CHUNK, columns], layout)


def _layout(columns: int) -> gl.NVMMASharedLayout:
    return gl.NVMMASharedLayout.get_default_for([CHUNK, columns], gl.bfloat16)


def compile_specs() -> list[KernelSpec]:
    """Return the specs to compile the kernel ahead of time, for the models 9B, 4B and 35B-A3B in
    bfloat16 with float32 state."""

    def tiles(columns: int) -> str:
        return f"tensordesc<bf16[{CHUNK}, {columns}],{_layout(columns)!r}>"

    heads = {"KEY_HEADS": 16, "VALUE_HEADS": 32, "KEY_DIM": 128, "VALUE_DIM": 128}
    sizes = {"COLUMNS": _COLUMNS, "CHUNK": CHUNK, "STAGES": _STAGES}
    layouts = {"OPERAND": _layout(_COLUMNS), "FLAT": _FLAT}
    made = KernelSpec.of(
        "gdn_partitioned_scan",
        _partitioned_scan_kernel,
        {**heads, **sizes, **layouts},
        _WARPS,
        fp32="gates ssm",
        i32="sequences segments saves",
        kq=tiles(128),
        v=tiles(_COLUMNS),
        mixers=tiles(CHUNK),
    )
    return [replace(made, max_registers=_REGISTERS, capabilities=(90,))]
