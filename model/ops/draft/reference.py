"""Final hidden states for the draft layer in PyTorch, read before a forward's tokens and stored
after them: the CPU path, and the reference of the kernels."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class CarryPlan:
    """Plan of the hidden states in a forward of B sequences, int64. starts, read_slots [B]: row of
    each sequence's first token, and slot with the hidden state before it. rows, slots [n]: a row,
    and the slot to store its hidden state in."""

    starts: Tensor
    read_slots: Tensor
    rows: Tensor
    slots: Tensor


def plan_carry(
    cu_seqlens: Tensor, read_slots: Tensor, saves: Sequence[tuple[int, int, int]]
) -> CarryPlan:
    """Return the plan of the hidden states read and stored by a forward. cu_seqlens [B + 1] int64:
    first row of each sequence; read_slots [B] int64; saves: see Batch.saves()."""
    owners, offsets, slots = torch.tensor(saves, dtype=torch.int64).view(-1, 3).unbind(1)
    return CarryPlan(cu_seqlens[:-1], read_slots, cu_seqlens[owners] + offsets - 1, slots)


def states_before(hidden: Tensor, carry: Tensor, plan: CarryPlan) -> Tensor:
    """Return the final hidden state of the token before each token, [T, width]. hidden [T, width]:
    states of this forward. carry [slots, width]: states by slot."""
    before = torch.cat([hidden[:1], hidden[:-1]])
    before[plan.starts] = carry[plan.read_slots].to(hidden.dtype)
    return before


def carry_over(hidden: Tensor, carry: Tensor, plan: CarryPlan) -> None:
    """Write the hidden state at each stored position into the slot of carry with the same
    number."""
    carry[plan.slots] = hidden[plan.rows].to(carry.dtype)
