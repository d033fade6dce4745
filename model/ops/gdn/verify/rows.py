"""Verification of drafts in a GDN layer, from in_proj's output to out_proj's input. A row with n
tokens is like n decode steps, but the state after them is not written.

Three launches. `verify_inputs` makes the recurrence's inputs and keeps them for a fold (storing the
state after accepted tokens). In the second launch a program owns half of one value head of one row.
It reads its half of the state once and applies the row's tokens one after another, with the state
in registers. If the row's last step accepted tokens, the program reads the state before these
tokens and applies them first. The resulting state is stored in the row's read slot. The third
launch, `gated_rows`, norms the read-outs. Reference: `TorchOperators.gdn` of `stepped` sequences
without stored states, after `TorchOperators.gdn` of the accepted tokens with stored states.

No row may read a slot written by another row. The kernel before these in the stream may not write
slots, counts or rows: they are read while it still runs.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from tasuki.model.config import DeltaNetConfig
from tasuki.model.weights.layers import GdnWeights
from tasuki.utils.triton.instructions import dependent, prefetch, wait_for_inputs
from tasuki.utils.triton.kernel_spec import KernelSpec

from ..reference_rounding import StateNoise
from .fold import FOLD_WARPS
from .gated_rows import gated_rows
from .inputs import verify_inputs
from .kept_inputs import LayerInputs
from .step import inputs_of, places_of_state, round_step, step, warps_of

# At 16 and 64 rows of 9B on an H200 this takes 0.57 times as long as whole heads in programs of 16
# warps. Those warps wait for each other at every token, for its norm.
_ROWS = 64
_KEYS = 128
_WARPS = 4


@dataclass(frozen=True)
class RowFolds:
    """Folds at the start of a verification: tokens accepted in the last step, applied to the states
    first; [B] int32 on the device. counts: number of these tokens, 0 for a row without a fold.
    places: index of the row among the last step's kept inputs. slots: slot of the state before
    these tokens; without a fold, the row's read slot. Convolution columns are folded before."""

    counts: Tensor
    places: Tensor
    slots: Tensor


def gdn_verify(
    projected: Tensor,
    weights: GdnWeights,
    config: DeltaNetConfig,
    conv: Tensor,
    ssm: Tensor,
    read_slots: Tensor,
    counts: Tensor,
    rows: Tensor,
    positions: Tensor,
    kept: LayerInputs,
    turn: Tensor,
    folds: RowFolds,
) -> Tensor:
    """Run T tokens of each row through a GDN mixer. Return [B * T, value_heads * value_dim] in
    projected's dtype. In the first rows[0] rows, tokens from counts[r] on give zeros; later rows
    are unwritten.

    projected: [B * T, conv_channels | value_heads * value_dim (z) | value_heads (b) | value_heads
    (a)], any stride; row r's T tokens begin at r * T. conv: [slots, channels, width - 1]. ssm:
    [slots, value_heads, value_dim, key_dim]. Both are views of the arena, dense except for the slot
    stride. read_slots: [B]. counts: [B], number of valid tokens, 1 to T. rows: [1], number of valid
    rows. positions: [B * T], of the tokens. turn: [1], 0 or 1. These five are int32 on the device.
    kept: two sets with at least B
    places and T tokens. This step keeps its inputs in set `turn`, and folds those of the other set.
    Head dimensions are powers of two.
    """
    verify_inputs(projected, weights, config, conv, read_slots, counts, rows, kept, turn)
    batch, heads = len(counts), config.value_heads
    tile = min(_ROWS, config.value_dim)
    read = projected.new_empty(projected.shape[0], heads * config.value_dim, dtype=torch.float32)
    _gdn_verify_kernel[(heads * config.value_dim // tile, batch)](
        kept.mixed,
        kept.scalars,
        turn,
        kept.mixed.stride(0),
        kept.scalars.stride(0),
        kept.mixed.shape[2],
        folds.counts,
        folds.places,
        folds.slots,
        ssm,
        ssm.stride(0),
        read_slots,
        counts,
        rows,
        positions,
        read,
        projected.shape[0] // batch,
        StateNoise(weights.number, config.first_value_head).origin,
        KEY_HEADS=config.key_heads,
        VALUE_HEADS=heads,
        KEY_DIM=config.key_dim,
        VALUE_DIM=config.value_dim,
        LINE=min(128 // ssm.element_size(), config.key_dim),
        ROWS=tile,
        AHEAD=tile * config.key_dim * ssm.element_size(),
        num_warps=_warps_of(tile, config.key_dim),
        **dependent(projected),
    )
    return gated_rows(projected, read, weights.norm, config, counts, rows)


def _warps_of(rows: int, key_dim: int) -> int:
    """Return the number of warps for a program. For small heads, absent from published models, it
    is the number used by folds, so that sums have the same order."""
    is_whole = rows * key_dim >= _ROWS * _KEYS
    return _WARPS if is_whole else warps_of(FOLD_WARPS, rows, key_dim)


@triton.jit(do_not_specialize=["kept_tokens", "tokens", "turn_size", "turn_numbers", "origin"])
def _gdn_verify_kernel(
    mixed,
    scalars,
    turn,
    turn_size,
    turn_numbers,
    kept_tokens,
    fold_counts,
    fold_places,
    fold_slots,
    ssm,
    ssm_stride,
    read_slots,
    counts,
    rows,
    positions,
    output,
    tokens,
    origin,
    KEY_HEADS: tl.constexpr,
    VALUE_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    LINE: tl.constexpr,
    ROWS: tl.constexpr,
    AHEAD: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    PARTS: tl.constexpr = VALUE_DIM // ROWS
    head = tl.program_id(0) // PARTS
    part = tl.program_id(0) % PARTS * ROWS
    row = tl.program_id(1)
    # Load these together, so padding is noticed without a second wait.
    live = tl.load(rows)
    read = tl.load(read_slots + row).to(tl.int64)
    before = tl.load(fold_slots + row).to(tl.int64)
    folded = tl.load(fold_counts + row)
    kept_at = tl.load(fold_places + row)
    own = tl.load(turn).to(tl.int64)
    count = tl.load(counts + row)
    seen = tl.load(positions + row * tokens) - folded
    if row >= live:
        wait_for_inputs(DEPENDENT)
        return
    within = head * (VALUE_DIM * KEY_DIM) + part * KEY_DIM
    old = ssm + before * ssm_stride + within
    if DEPENDENT:
        prefetch(old, AHEAD)
    wait_for_inputs(DEPENDENT)
    CHANNELS: tl.constexpr = 2 * KEY_HEADS * KEY_DIM + VALUE_HEADS * VALUE_DIM
    NUMBERS: tl.constexpr = 2 * KEY_HEADS + 2 * VALUE_HEADS
    # A token's inputs are loaded while the token before is computed, because loads take long.
    at = (1 - own) * turn_size + (kept_at * kept_tokens).to(tl.int64) * CHANNELS
    numbers = (1 - own) * turn_numbers + (kept_at * kept_tokens).to(tl.int64) * NUMBERS
    first = own * turn_size + (row * kept_tokens).to(tl.int64) * CHANNELS
    first_numbers = own * turn_numbers + (row * kept_tokens).to(tl.int64) * NUMBERS
    at = tl.where(folded > 0, at, first)
    numbers = tl.where(folded > 0, numbers, first_numbers)
    q, k, v, decay, beta = inputs_of(
        mixed + at, scalars + numbers, head, part, ROWS, KEY_HEADS, VALUE_HEADS, KEY_DIM, VALUE_DIM,
        LINE,
    )  # fmt: skip
    places = places_of_state(KEY_DIM, ROWS, LINE)
    state = tl.load(old + places).to(tl.float32)
    for number in range(folded):
        is_last = number + 1 == folded
        at = tl.where(is_last, first, at + CHANNELS)
        numbers = tl.where(is_last, first_numbers, numbers + NUMBERS)
        next_q, next_k, next_v, next_decay, next_beta = inputs_of(
            mixed + at, scalars + numbers, head, part, ROWS, KEY_HEADS, VALUE_HEADS, KEY_DIM,
            VALUE_DIM, LINE,
        )  # fmt: skip
        state, delta = step(state, k, v, decay, beta)
        seen += 1
        if ssm.dtype.element_ty == tl.bfloat16:
            state = round_step(state, delta, origin + head, seen, part, ROWS, KEY_DIM, LINE)
        q, k, v, decay, beta = next_q, next_k, next_v, next_decay, next_beta
    if folded > 0:
        tl.store(ssm + read * ssm_stride + within + places, state.to(ssm.dtype.element_ty))
    to = output + (row * tokens).to(tl.int64) * (VALUE_HEADS * VALUE_DIM)
    to += head * VALUE_DIM + part + tl.arange(0, ROWS)
    for number in range(count):
        is_last = number + 1 == count
        at = tl.where(is_last, at, at + CHANNELS)
        numbers = tl.where(is_last, numbers, numbers + NUMBERS)
        next_q, next_k, next_v, next_decay, next_beta = inputs_of(
            mixed + at, scalars + numbers, head, part, ROWS, KEY_HEADS, VALUE_HEADS, KEY_DIM,
            VALUE_DIM, LINE,
        )  # fmt: skip
        # This is over the old state, as is the step's own sum: S' q = decay (S q) + delta (k . q).
        asked = tl.sum(tl.sum(state * q[None, :, :], axis=1), axis=1)
        state, delta = step(state, k, v, decay, beta)
        seen += 1
        # A decode step would store the state rounded, and the next step would read that.
        if ssm.dtype.element_ty == tl.bfloat16:
            state = round_step(state, delta, origin + head, seen, part, ROWS, KEY_DIM, LINE)
        tl.store(to, decay * asked + delta * tl.sum(k * q))
        q, k, v, decay, beta = next_q, next_k, next_v, next_decay, next_beta
        to += VALUE_HEADS * VALUE_DIM


def compile_specs() -> list[KernelSpec]:
    """Return the specs to compile the kernels ahead of time. They have the shapes of the models 9B,
    4B and 35B-A3B: 16 key and 32 value heads of 128, bfloat16 with states of both dtypes."""
    heads = {"KEY_HEADS": 16, "VALUE_HEADS": 32, "KEY_DIM": 128, "VALUE_DIM": 128}
    return [
        KernelSpec.of(
            name,
            _gdn_verify_kernel,
            heads | {"LINE": line, "ROWS": _ROWS, "AHEAD": 32768, "DEPENDENT": True},
            _WARPS,
            fp32=f"scalars output {states}",
            i32="read_slots counts rows positions turn fold_counts fold_places fold_slots",
        )
        for name, line, states in (("gdn_verify", 32, "ssm"), ("gdn_verify_bf16_states", 64, ""))
    ]
