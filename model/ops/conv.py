"""Depthwise causal convolution over packed sequences whose earlier inputs stand in state slots."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True)
class ConvPlan:
    """Which rows follow which, the same for every layer of a forward.

    Sequences are laid end to end, each led by its width-1 state columns ("extended" rows).
    gather [E] int64: extended rows, as rows of [all state columns, then all tokens].
    outputs [T] int64: extended row of the first input of each token's window.
    saves [S, width-1] int64: extended rows that make each state to be stored; slots [S] int64.
    """

    read_slots: Tensor
    gather: Tensor
    outputs: Tensor
    saves: Tensor
    save_slots: Tensor


def plan_conv(
    lengths: Sequence[int],
    read_slots: Tensor,
    saves: Sequence[tuple[int, int, int]],
    columns: int,
) -> ConvPlan:
    """saves: (sequence, tokens of this forward, slot)."""
    device = read_slots.device
    gather: list[int] = []
    outputs: list[int] = []
    bases: list[int] = []
    token = len(lengths) * columns
    for sequence, length in enumerate(lengths):
        bases.append(len(gather))
        outputs.extend(range(len(gather), len(gather) + length))
        gather.extend(range(sequence * columns, (sequence + 1) * columns))
        gather.extend(range(token, token + length))
        token += length
    first = [bases[sequence] + offset for sequence, offset, _ in saves]

    def ints(values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=device)

    return ConvPlan(
        read_slots=read_slots,
        gather=ints(gather),
        outputs=ints(outputs),
        saves=ints(first)[:, None] + torch.arange(columns, device=device),
        save_slots=ints([slot for _, _, slot in saves]),
    )


def causal_conv(x: Tensor, weight: Tensor, state: Tensor, plan: ConvPlan) -> Tensor:
    """silu(conv(x)) [T, channels] in x's dtype; stores the states that plan asks for.

    x [T, channels]; weight [channels, width]; state [slots, channels, width-1], oldest column
    first.
    """
    channels, width = weight.shape
    before = state.index_select(0, plan.read_slots).transpose(1, 2).reshape(-1, channels)
    extended = torch.cat([before.to(x.dtype), x]).index_select(0, plan.gather)
    state[plan.save_slots] = extended[plan.saves].transpose(1, 2).to(state.dtype)
    taps = weight.t().float()
    windows = extended.shape[0] - width + 1
    inputs = extended.float()
    total = inputs[:windows] * taps[0]
    for tap in range(1, width):
        total.addcmul_(inputs[tap : tap + windows], taps[tap])
    # Windows that begin in one sequence and end in the next are computed too, and dropped here.
    return functional.silu(total.index_select(0, plan.outputs), inplace=True).to(x.dtype)
