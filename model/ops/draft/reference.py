"""Places of the final hidden states read by entries and stored by forwards, in PyTorch: the CPU
path, and the reference of the kernels."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class CarryPlan:
    """Plan of one forward of B sequences; int64. starts, read_slots [B]: the row of each sequence's
    first token, and the slot with the state before it. rows, slots [n]: a row, and the slot for the
    state behind it."""

    starts: Tensor
    read_slots: Tensor
    rows: Tensor
    slots: Tensor


def plan_carry(
    cu_seqlens: Tensor, read_slots: Tensor, saves: Sequence[tuple[int, int, int]]
) -> CarryPlan:
    """Plan the carry. cu_seqlens [B + 1], read_slots [B] int64; saves: see Batch.saves()."""
    owners, offsets, slots = torch.tensor(saves, dtype=torch.int64).view(-1, 3).unbind(1)
    return CarryPlan(cu_seqlens[:-1], read_slots, cu_seqlens[owners] + offsets - 1, slots)


def states_before(hidden: Tensor, carry: Tensor, plan: CarryPlan) -> Tensor:
    """Return the final hidden state of each token's predecessor: [T, width]. hidden: [T, width], of
    this forward. carry: [slots, width]."""
    before = torch.cat([hidden[:1], hidden[:-1]])
    before[plan.starts] = carry[plan.read_slots].to(hidden.dtype)
    return before


def carry_over(hidden: Tensor, carry: Tensor, plan: CarryPlan) -> None:
    """Write the hidden state behind every stored state into its slot."""
    carry[plan.slots] = hidden[plan.rows].to(carry.dtype)
