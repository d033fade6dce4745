"""The scan of a GDN layer's prefill: its recurrent states, chunk after chunk, and every token's
read-out of them.

A program owns one value head of one sequence, and some columns of its value dimension. Its part of
the state stays in registers from the sequence's first token to its last, and is stored at every
planned position. It is in float32. If states are stored in bfloat16, it is rounded to numbers of
bfloat16 at every multiple of CHUNK tokens. Reference: the loop of `reference_chunked.py`.
"""

import triton
import triton.language as tl
from torch import Tensor, float32

from tasuki.model.config import DeltaNetConfig
from tasuki.utils.triton.kernel_spec import KernelSpec

from .partitioned_scan import has_partitions, partitioned_scan
from .prefill_plan import CHUNK, GdnPrefillPlan
from .reference_rounding import StateNoise
from .state_rounding import key_words, round_any_state, row_words

_WARPS = 4
_STAGES = 3
_COLUMNS = 32


def gdn_scan(
    kq: Tensor,
    v: Tensor,
    mixers: Tensor,
    gates: Tensor,
    config: DeltaNetConfig,
    ssm: Tensor,
    plan: GdnPrefillPlan,
    noise: StateNoise,
) -> None:
    """Scan all chunks. Overwrite v with the outputs before their norm, and store the planned states
    in ssm.

    kq, v as from `gdn_conv`; mixers, gates as from `gdn_chunk`; ssm [slots, value_heads, value_dim,
    key_dim], dense except for the slot stride. noise: for rounding bfloat16 states.
    """
    if has_partitions(kq, v, ssm):
        partitioned_scan(kq, v, mixers, gates, config, ssm, plan)
        return
    columns = min(_COLUMNS, config.value_dim)
    grid = (config.value_dim // columns, config.value_heads, plan.sequences.shape[0])
    _scan_kernel[grid](
        kq,
        v,
        mixers,
        gates,
        ssm,
        ssm.stride(0),
        plan.sequences,
        plan.segments,
        plan.saves,
        plan.ends,
        noise.origin,
        KEY_HEADS=config.key_heads,
        VALUE_HEADS=config.value_heads,
        KEY_DIM=config.key_dim,
        VALUE_DIM=config.value_dim,
        COLUMNS=columns,
        CHUNK=CHUNK,
        num_warps=_WARPS,
        # Float32 tiles are twice as large, and two stages of them no longer fit.
        num_stages=1 if kq.dtype == float32 else _STAGES,
    )


@triton.jit
def _halves(rows, HALF: tl.constexpr, COLUMNS: tl.constexpr):
    """Return the upper and the lower half of the rows of a tile [2 * HALF, COLUMNS]."""
    return tl.split(tl.permute(tl.reshape(rows, [2, HALF, COLUMNS]), (1, 2, 0)))


@triton.jit(do_not_specialize=["origin"])
def _scan_kernel(
    kq,
    v,
    mixers,
    gates,
    ssm,
    ssm_stride,
    sequences,
    segments,
    saves,
    ends,
    origin,
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
    twice = tl.arange(0, 2 * CHUNK)
    key = tl.arange(0, KEY_DIM)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    kq_tiles = kq + key_head * (2 * CHUNK * KEY_DIM) + twice[:, None] * KEY_DIM + key[None, :]
    v_tiles = v + head * (CHUNK * VALUE_DIM) + token[:, None] * VALUE_DIM + column[None, :]
    mix_tiles = mixers + head * (2 * CHUNK * CHUNK) + twice[:, None] * CHUNK + token[None, :]
    state_tile = (head * VALUE_DIM + column[None, :]) * KEY_DIM + key[:, None]

    keys, upper = key_words(key[:, None], KEY_DIM)
    slot = tl.load(sequence + 1).to(tl.int64)
    state = tl.load(ssm + slot * ssm_stride + state_tile).to(tl.float32)
    for segment in range(tl.load(sequence + 2), tl.load(sequence + 3)):
        for chunk in range(tl.load(segments + 4 * segment), tl.load(segments + 4 * segment + 1)):
            at = tl.cast(chunk, tl.int64)
            keys_queries = tl.load(kq_tiles + at * (KEY_HEADS * 2 * CHUNK * KEY_DIM))
            values = tl.load(v_tiles + at * (VALUE_HEADS * CHUNK * VALUE_DIM))
            mixer = tl.load(mix_tiles + at * (VALUE_HEADS * 2 * CHUNK * CHUNK))
            gate = gates + (at * VALUE_HEADS + head) * (2 * CHUNK)
            total = tl.load(gate + token)
            last = tl.load(gate + CHUNK - 1)
            beta = tl.load(gate + CHUNK + token)

            # One product applies the state to keys and queries; one product gives deltas and
            # read-out.
            rounded = state.to(kq.dtype.element_ty)
            known, read = _halves(
                tl.dot(keys_queries, rounded, input_precision="ieee"), CHUNK, COLUMNS
            )
            fade = tl.exp(total)[:, None]
            missing = beta[:, None] * (values.to(tl.float32) - fade * known)
            deltas, inside = _halves(
                tl.dot(mixer, missing.to(kq.dtype.element_ty), input_precision="ieee"),
                CHUNK,
                COLUMNS,
            )
            kept = (deltas * tl.exp(last - total)[:, None]).to(kq.dtype.element_ty)
            # Queries add nothing to the state, so their rows are multiplied by zeros.
            padded = tl.reshape(
                tl.permute(tl.join(kept, tl.zeros_like(kept)), (2, 0, 1)), [2 * CHUNK, COLUMNS]
            )
            state = tl.dot(
                tl.trans(keys_queries), padded, state * tl.exp(last), input_precision="ieee"
            )
            to = v_tiles + at * (VALUE_HEADS * CHUNK * VALUE_DIM)
            tl.store(to, (fade * read + inside).to(v.dtype.element_ty))
            if ssm.dtype.element_ty == tl.bfloat16:
                tokens = tl.load(ends + chunk)
                words = row_words(origin + head, tokens, column)[None, :]
                whole = round_any_state(state, words, keys, upper)
                state = tl.where(tokens % CHUNK == 0, whole, state)
        stored = state
        if ssm.dtype.element_ty == tl.bfloat16:
            tokens = tl.load(ends + tl.load(segments + 4 * segment + 1) - 1)
            words = row_words(origin + head, tokens, column)[None, :]
            stored = round_any_state(state, words, keys, upper)
        for save in range(tl.load(segments + 4 * segment + 2), tl.load(segments + 4 * segment + 3)):
            target = tl.load(saves + 2 * save + 1).to(tl.int64)
            tl.store(ssm + target * ssm_stride + state_tile, stored.to(ssm.dtype.element_ty))


def compile_specs() -> list[KernelSpec]:
    """Return the specs to compile the kernels ahead of time, for the models 9B, 4B and 35B-A3B in
    bfloat16 with states of both dtypes."""
    heads = {"KEY_HEADS": 16, "VALUE_HEADS": 32, "KEY_DIM": 128, "VALUE_DIM": 128}
    return [
        KernelSpec.of(
            name,
            _scan_kernel,
            heads | {"COLUMNS": _COLUMNS, "CHUNK": CHUNK},
            _WARPS,
            _STAGES,
            fp32=f"gates {states}",
            i32="sequences segments saves ends",
        )
        for name, states in (("gdn_scan", "ssm"), ("gdn_scan_bf16_states", ""))
    ]
