"""The states of a GDN layer, chunk after chunk, and every token's read-out of them.

A program owns one value head of one sequence, and some columns of its value dimension: its part of
the state stays in registers from the sequence's first token to its last, and is stored in float32
wherever the plan saves one. Twin: the loop of `model.ops.gdn_chunked`.
"""

import triton
import triton.language as tl
from torch import Tensor, float32

from ...pycache.kernel_spec import KernelSpec
from ..config import ModelConfig
from .gdn_plan import CHUNK, GdnPrefillPlan

_WARPS = 4
_STAGES = 2
_COLUMNS = 32


def gdn_scan(
    qk: Tensor,
    v: Tensor,
    inverse: Tensor,
    scores: Tensor,
    gates: Tensor,
    config: ModelConfig,
    ssm: Tensor,
    plan: GdnPrefillPlan,
) -> None:
    """Writes the outputs, before their norm, over v; and the states that the plan saves.

    qk, v as of `gdn_conv`; inverse, scores, gates as of `gdn_chunk`; ssm [slots, value_heads,
    value_dim, key_dim], dense but for the slot stride.
    """
    columns = min(_COLUMNS, config.value_dim)
    grid = (config.value_dim // columns, config.value_heads, plan.sequences.shape[0])
    _kernel[grid](
        qk,
        v,
        inverse,
        scores,
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
        COLUMNS=columns,
        CHUNK=CHUNK,
        num_warps=_WARPS,
        # Float32 tiles are twice as large, and two stages of them no longer fit.
        num_stages=1 if qk.dtype == float32 else _STAGES,
    )


@triton.jit
def _kernel(
    qk,
    v,
    inverse,
    scores,
    gates,
    ssm,
    ssm_stride,
    sequences,
    segments,
    saves,
    KEY_HEADS: tl.constexpr,
    VALUE_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    COLUMNS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    head = tl.program_id(1)
    sequence = sequences + 6 * tl.program_id(2)
    key_head = head // (VALUE_HEADS // KEY_HEADS)
    token = tl.arange(0, CHUNK)
    key = tl.arange(0, KEY_DIM)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    q_tiles = qk + key_head * (CHUNK * KEY_DIM) + token[:, None] * KEY_DIM + key[None, :]
    v_tiles = v + head * (CHUNK * VALUE_DIM) + token[:, None] * VALUE_DIM + column[None, :]
    square = head * (CHUNK * CHUNK) + token[:, None] * CHUNK + token[None, :]
    state_tile = (head * VALUE_DIM + column[None, :]) * KEY_DIM + key[:, None]

    slot = tl.load(sequence + 1).to(tl.int64)
    state = tl.load(ssm + slot * ssm_stride + state_tile).to(tl.float32)
    for segment in range(tl.load(sequence + 2), tl.load(sequence + 3)):
        for chunk in range(tl.load(segments + 4 * segment), tl.load(segments + 4 * segment + 1)):
            at = tl.cast(chunk, tl.int64)
            q = tl.load(q_tiles + at * (2 * KEY_HEADS * CHUNK * KEY_DIM))
            k = tl.load(q_tiles + (at * 2 + 1) * (KEY_HEADS * CHUNK * KEY_DIM))
            values = tl.load(v_tiles + at * (VALUE_HEADS * CHUNK * VALUE_DIM))
            solve = tl.load(inverse + at * (VALUE_HEADS * CHUNK * CHUNK) + square)
            seen = tl.load(scores + at * (VALUE_HEADS * CHUNK * CHUNK) + square)
            gate = gates + (at * VALUE_HEADS + head) * (2 * CHUNK)
            total = tl.load(gate + token)
            last = tl.load(gate + CHUNK - 1)
            beta = tl.load(gate + CHUNK + token)

            rounded = state.to(qk.dtype.element_ty)
            fade = tl.exp(total)[:, None]
            known = tl.dot(k, rounded, input_precision="ieee")
            missing = beta[:, None] * (values.to(tl.float32) - fade * known)
            deltas = tl.dot(solve, missing.to(qk.dtype.element_ty), input_precision="ieee")
            read = fade * tl.dot(q, rounded, input_precision="ieee")
            read = tl.dot(seen, deltas.to(qk.dtype.element_ty), read, input_precision="ieee")
            kept = (deltas * tl.exp(last - total)[:, None]).to(qk.dtype.element_ty)
            state = tl.dot(tl.trans(k), kept, state * tl.exp(last), input_precision="ieee")
            to = v_tiles + at * (VALUE_HEADS * CHUNK * VALUE_DIM)
            tl.store(to, read.to(v.dtype.element_ty))
        for save in range(tl.load(segments + 4 * segment + 2), tl.load(segments + 4 * segment + 3)):
            target = tl.load(saves + 2 * save + 1).to(tl.int64)
            tl.store(ssm + target * ssm_stride + state_tile, state.to(ssm.dtype.element_ty))


def compile_specs() -> list[KernelSpec]:
    """9B, 4B and 35B-A3B in bfloat16 with float32 state."""
    return [
        KernelSpec(
            name="gdn_scan",
            kernel=_kernel,
            signature={
                "qk": "*bf16",
                "v": "*bf16",
                "inverse": "*bf16",
                "scores": "*bf16",
                "gates": "*fp32",
                "ssm": "*fp32",
                "ssm_stride": "i32:16",
                "sequences": "*i32",
                "segments": "*i32",
                "saves": "*i32",
            },
            constants={
                "KEY_HEADS": 16,
                "VALUE_HEADS": 32,
                "KEY_DIM": 128,
                "VALUE_DIM": 128,
                "COLUMNS": _COLUMNS,
                "CHUNK": CHUNK,
            },
            num_warps=_WARPS,
            num_stages=_STAGES,
        )
    ]
