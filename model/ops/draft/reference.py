"""Where a token's entry finds the final hidden state before it, and where that behind a forward's
last token goes, in PyTorch: the CPU path, and the oracle of the kernels."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class CarryPlan:
    """Of one forward of B sequences; int64. starts, read_slots [B]: the row of each sequence's
    first token, and the slot that carries the state before it. rows, slots [n]: behind which row
    which slot's state is."""

    starts: Tensor
    read_slots: Tensor
    rows: Tensor
    slots: Tensor


def plan_carry(
    cu_seqlens: Tensor, read_slots: Tensor, saves: Sequence[tuple[int, int, int]]
) -> CarryPlan:
    """cu_seqlens [B + 1], read_slots [B] int64; saves: as of Batch.saves()."""
    owners, offsets, slots = torch.tensor(saves, dtype=torch.int64).view(-1, 3).unbind(1)
    return CarryPlan(cu_seqlens[:-1], read_slots, cu_seqlens[owners] + offsets - 1, slots)


def states_before(hidden: Tensor, carry: Tensor, plan: CarryPlan) -> Tensor:
    """[T, width]: of each token the final hidden state of the one before it. hidden [T, width]: of
    this forward; carry [slots, width]."""
    before = torch.cat([hidden[:1], hidden[:-1]])
    before[plan.starts] = carry[plan.read_slots].to(hidden.dtype)
    return before


def carry_over(hidden: Tensor, carry: Tensor, plan: CarryPlan) -> None:
    """Write the hidden state behind every state that the forward stores into its slot."""
    carry[plan.slots] = hidden[plan.rows].to(carry.dtype)
