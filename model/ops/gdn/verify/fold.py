"""Folds: storing of the recurrent states after the accepted drafts, computed from the kept inputs
of these tokens. Two launches serve all layers of many rows.

A program owns one value head of one row and layer. It reads the head's state, applies the tokens
one after another by the arithmetic of `gdn_verify`, and stores it once. One kernel serves every
count, so a fold of n tokens is bit for bit n folds of one. Convolutions' columns are a launch of
their own. Reference: `TorchOperators.gdn` of the same tokens, `stepped`, storing the state.
"""

from collections.abc import Sequence
from itertools import pairwise

import triton
import triton.language as tl
from torch import Tensor

from tasuki.model.config import DeltaNetConfig
from tasuki.model.forward import FoldRows
from tasuki.utils.triton.kernel_spec import KernelSpec

from ..state_rounding import head_of_layers
from .kept_inputs import KeptInputs, KeptTurns
from .step import inputs_of, places_of_state, round_step, step, warps_of

FOLD_WARPS = 8
_CHANNELS = 256
_CHANNEL_WARPS = 4


def gdn_fold(
    kept: KeptInputs,
    config: DeltaNetConfig,
    conv: Sequence[Tensor],
    ssm: Sequence[Tensor],
    folds: FoldRows,
    starts: Tensor,
) -> None:
    """Store the states after the accepted tokens in all layers, convolution columns included. kept:
    inputs of the verified tokens. conv, ssm: views of one arena, one per layer, as for
    `gdn_verify`. starts: [n] int32, tokens before the accepted ones in each row's sequence. Raises
    ValueError unless the layers have equal distances."""
    fold_columns(kept, config, conv, folds)
    fold_states(kept, config, ssm, folds, starts)


def fold_columns(
    kept: KeptInputs | KeptTurns,
    config: DeltaNetConfig,
    conv: Sequence[Tensor],
    folds: FoldRows,
    turn: Tensor | None = None,
) -> None:
    """Store only the convolution columns after the accepted tokens, see gdn_fold(). A row without
    accepted tokens stays unchanged. turn [1] int32: number of the coming step's set of inputs; the
    other set is read. None if `kept` has one set."""
    layers, rows = len(conv), len(folds.counts)
    conv_step = _step_of(conv)
    raw = kept.raw
    _fold_columns_kernel[(triton.cdiv(config.conv_channels, _CHANNELS), rows, layers)](
        raw,
        turn,
        raw.stride(0),
        raw.shape[-3],
        raw.shape[-2],
        conv[0],
        conv[0].stride(0),
        conv_step,
        *folds.tables,
        CHANNELS=config.conv_channels,
        COLUMNS=config.conv_width - 1,
        PADDED=triton.next_power_of_2(config.conv_width - 1),
        BLOCK=_CHANNELS,
        num_warps=_CHANNEL_WARPS,
    )


def fold_states(
    kept: KeptInputs,
    config: DeltaNetConfig,
    ssm: Sequence[Tensor],
    folds: FoldRows,
    starts: Tensor,
) -> None:
    """Store only the recurrent states after the accepted tokens, see gdn_fold()."""
    layers, rows = len(ssm), len(folds.counts)
    ssm_step = _step_of(ssm)
    _states_kernel[(config.value_heads, rows, layers)](
        kept.mixed,
        kept.scalars,
        kept.places,
        kept.tokens,
        ssm[0],
        ssm[0].stride(0),
        ssm_step,
        *folds.tables,
        starts,
        config.first_value_head,
        KEY_HEADS=config.key_heads,
        VALUE_HEADS=config.value_heads,
        KEY_DIM=config.key_dim,
        VALUE_DIM=config.value_dim,
        LINE=min(128 // ssm[0].element_size(), config.key_dim),
        num_warps=warps_of(FOLD_WARPS, config.value_dim, config.key_dim),
    )


def _step_of(views: Sequence[Tensor]) -> int:
    """Return the distance, in elements, between the views of successive layers. Raises ValueError
    if the distances differ."""
    offsets = [int(view.storage_offset()) for view in views]
    steps = {after - before for before, after in pairwise(offsets)}
    if len(steps) > 1 or len({view.untyped_storage().data_ptr() for view in views}) > 1:
        raise ValueError(f"layers' views lie {sorted(steps)} elements apart: they must be equally")
    return steps.pop() if steps else 0


@triton.jit(do_not_specialize=["turn_size", "kept_places", "kept_tokens"])
def _fold_columns_kernel(
    raw,
    turn,
    turn_size,
    kept_places,
    kept_tokens,
    conv,
    conv_stride,
    layer_stride,
    places,
    counts,
    read_slots,
    write_slots,
    CHANNELS: tl.constexpr,
    COLUMNS: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(1)
    layer = tl.program_id(2).to(tl.int64)
    place = tl.load(places + row)
    count = tl.load(counts + row)
    if count == 0:
        return
    if turn is not None:
        raw += (1 - tl.load(turn)).to(tl.int64) * turn_size
    read = tl.load(read_slots + row).to(tl.int64)
    write = tl.load(write_slots + row).to(tl.int64)
    conv += layer * layer_stride
    raw += ((layer * kept_places + place) * kept_tokens) * CHANNELS
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    column = tl.arange(0, PADDED)
    inside = (channel < CHANNELS)[:, None] & (column < COLUMNS)[None, :]
    within = channel[:, None] * COLUMNS + column[None, :]
    token = count - COLUMNS + column
    fresh = tl.load(
        raw + token[None, :] * CHANNELS + channel[:, None],
        mask=inside & (token >= 0)[None, :],
        other=0.0,
    )
    stored = tl.load(
        conv + read * conv_stride + within + count,
        mask=inside & (token < 0)[None, :],
        other=0.0,
    )
    # A column is moved in place, so no thread may overwrite it before another has read it.
    tl.debug_barrier()
    columns = tl.where((token >= 0)[None, :], fresh.to(conv.dtype.element_ty), stored)
    tl.store(conv + write * conv_stride + within, columns, mask=inside)


@triton.jit(do_not_specialize=["kept_places", "kept_tokens", "first_head"])
def _states_kernel(
    mixed,
    scalars,
    kept_places,
    kept_tokens,
    ssm,
    ssm_stride,
    layer_stride,
    places,
    counts,
    read_slots,
    write_slots,
    starts,
    first_head,
    KEY_HEADS: tl.constexpr,
    VALUE_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    LINE: tl.constexpr,
):
    head = tl.program_id(0)
    row = tl.program_id(1)
    layer = tl.program_id(2).to(tl.int64)
    place = tl.load(places + row)
    count = tl.load(counts + row)
    read = tl.load(read_slots + row).to(tl.int64)
    write = tl.load(write_slots + row).to(tl.int64)
    CHANNELS: tl.constexpr = 2 * KEY_HEADS * KEY_DIM + VALUE_HEADS * VALUE_DIM
    NUMBERS: tl.constexpr = 2 * KEY_HEADS + 2 * VALUE_HEADS
    at = (layer * kept_places + place) * kept_tokens
    within = head * (VALUE_DIM * KEY_DIM) + places_of_state(KEY_DIM, VALUE_DIM, LINE)
    ssm += layer * layer_stride
    state = tl.load(ssm + read * ssm_stride + within).to(tl.float32)
    numbered = head_of_layers(tl.program_id(2), first_head + head)
    tokens = tl.load(starts + row)
    for _ in range(count):
        _, k, v, decay, beta = inputs_of(
            mixed + at * CHANNELS,
            scalars + at * NUMBERS,
            head,
            0,
            VALUE_DIM,
            KEY_HEADS,
            VALUE_HEADS,
            KEY_DIM,
            VALUE_DIM,
            LINE,
        )
        state, delta = step(state, k, v, decay, beta)
        tokens += 1
        if ssm.dtype.element_ty == tl.bfloat16:
            state = round_step(state, delta, numbered, tokens, 0, VALUE_DIM, KEY_DIM, LINE)
        at += 1
    tl.store(ssm + write * ssm_stride + within, state.to(ssm.dtype.element_ty))


def compile_specs() -> list[KernelSpec]:
    """Return the specs to compile the kernels ahead of time. They have the shapes of the models 9B,
    4B and 35B-A3B: 16 key and 32 value heads of 128, bfloat16 with states of both dtypes."""
    heads = {"KEY_HEADS": 16, "VALUE_HEADS": 32, "KEY_DIM": 128, "VALUE_DIM": 128}
    sizes = {"CHANNELS": 8192, "COLUMNS": 3, "PADDED": 4, "BLOCK": _CHANNELS}
    tables = "places counts read_slots write_slots"
    of_states = (("gdn_fold_states", 32, "ssm"), ("gdn_fold_bf16_states", 64, ""))
    return [
        *(
            KernelSpec.of(
                name,
                _states_kernel,
                heads | {"LINE": line},
                FOLD_WARPS,
                fp32=f"scalars {states}",
                i32=f"{tables} starts",
            )
            for name, line, states in of_states
        ),
        KernelSpec.of(
            "gdn_fold_columns",
            _fold_columns_kernel,
            sizes | {"turn": None},
            _CHANNEL_WARPS,
            i32=tables,
        ),
        KernelSpec.of(
            "gdn_fold_columns_first",
            _fold_columns_kernel,
            sizes,
            _CHANNEL_WARPS,
            i32=f"{tables} turn",
        ),
    ]
