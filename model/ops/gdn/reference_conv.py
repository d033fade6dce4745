"""Depthwise causal convolution over packed sequences, in PyTorch. State slots have the inputs
before each sequence."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True)
class ConvPlan:
    """Row tables of the convolution, the same for every layer of a forward.

    Sequences are laid end to end, and the width-1 inputs from its slot precede each one ("extended"
    rows). state_rows [B * (width-1)], token_rows [T] int64: extended row of every state column and
    token. outputs [T] int64: extended row of the first input of each token's window. saves [S,
    width-1] int64: extended rows of each stored state; save_slots [S] int64.
    """

    read_slots: Tensor
    state_rows: Tensor
    token_rows: Tensor
    outputs: Tensor
    saves: Tensor
    save_slots: Tensor


def plan_conv(
    lengths: Sequence[int],
    read_slots: Tensor,
    saves: Sequence[tuple[int, int, int]],
    columns: int,
) -> ConvPlan:
    """Return the plan of a forward's convolution. lengths: tokens of each sequence. saves: states
    to store, as (sequence, tokens of this forward before the state, slot). columns: inputs in a
    stored state, width - 1."""
    device = read_slots.device
    bases: list[int] = []
    state_rows: list[int] = []
    token_rows: list[int] = []
    for length in lengths:
        base = len(state_rows) + len(token_rows)
        bases.append(base)
        state_rows.extend(range(base, base + columns))
        token_rows.extend(range(base + columns, base + columns + length))
    first = [bases[sequence] + offset for sequence, offset, _ in saves]

    def ints(values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=device)

    return ConvPlan(
        read_slots=read_slots,
        state_rows=ints(state_rows),
        token_rows=ints(token_rows),
        outputs=ints(token_rows) - columns,
        saves=ints(first)[:, None] + torch.arange(columns, device=device),
        save_slots=ints([slot for _, _, slot in saves]),
    )


def causal_conv(x: Tensor, weight: Tensor, state: Tensor, plan: ConvPlan) -> Tensor:
    """Convolve x and store the planned states. Return silu(conv(x)) [T, channels] in x's dtype.

    x [T, channels]; weight [channels, width]; state [slots, channels, width-1], oldest column
    first.
    """
    channels, width = weight.shape
    before = state.index_select(0, plan.read_slots).transpose(1, 2).reshape(-1, channels)
    extended = x.new_empty(before.shape[0] + x.shape[0], channels)
    extended.index_copy_(0, plan.state_rows, before.to(x.dtype))
    extended.index_copy_(0, plan.token_rows, x)
    state[plan.save_slots] = extended[plan.saves].transpose(1, 2).to(state.dtype)
    taps = weight.t().float()
    windows = extended.shape[0] - width + 1
    inputs = extended.float()
    total = inputs[:windows] * taps[0]
    for tap in range(1, width):
        total.addcmul_(inputs[tap : tap + windows], taps[tap])
    # Windows across two sequences are computed too, and dropped here.
    return functional.silu(total.index_select(0, plan.outputs), inplace=True).to(x.dtype)
