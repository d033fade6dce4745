"""States in PyTorch: where those of a forward come from, and where they are stored.

A window of c columns has the last c rows before a sequence's next token, oldest first, and zeros
before its first token. A forward reads the window at the sequence's read slot, puts its own rows
behind it, and stores the last c of them for every stored state.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tasuki.model.families.qwen4_exp.config import Qwen4ExpConfig
from tasuki.model.forward import Batch
from tasuki.model.ops.draft.reference import CarryPlan, plan_carry
from tasuki.model.ops.gdn.reference import GdnPlans
from tasuki.model.ops.gdn.reference_conv import ConvPlan, plan_conv


@dataclass(frozen=True)
class WindowPlan:
    """Row tables of one window length, the same for every layer of a forward.

    rows: the extended rows, which are each sequence's window and its tokens, end to end. firsts [B]
    int64: extended row of each sequence's first token. columns: length of the window.
    """

    rows: ConvPlan
    firsts: Tensor
    columns: int

    @staticmethod
    def of(
        lengths: Sequence[int],
        read_slots: Tensor,
        saves: Sequence[tuple[int, int, int]],
        columns: int,
    ) -> "WindowPlan":
        """Return the plan of a forward. lengths: tokens of each sequence. saves: states to store,
        as (sequence, tokens of this forward before the state, slot)."""
        ends = torch.tensor([0, *lengths]).cumsum(0)
        firsts = ends[:-1] + columns * torch.arange(1, len(lengths) + 1)
        return WindowPlan(plan_conv(lengths, read_slots, saves, columns), firsts, columns)

    def extend(self, x: Tensor, state: Tensor) -> Tensor:
        """Return the extended rows [T + B * columns, width] of x [T, width], and store the planned
        windows. state [slots, width, columns]: windows by slot, of any float dtype."""
        rows, width = self.rows, x.shape[1]
        before = state.index_select(0, rows.read_slots).transpose(1, 2).reshape(-1, width)
        extended = x.new_empty(len(before) + len(x), width)
        extended.index_copy_(0, rows.state_rows, before.to(x.dtype))
        extended.index_copy_(0, rows.token_rows, x)
        state[rows.save_slots] = extended[rows.saves].transpose(1, 2).to(state.dtype)
        return extended

    def behind(self, extended: Tensor) -> Tensor:
        """Return the window after each token, [T, columns, width], oldest row first."""
        places = self.rows.outputs[:, None] + 1 + torch.arange(self.columns)
        return extended[places]


@dataclass(frozen=True)
class StatePlan:
    """Where a forward's states come from, and where they are stored. windows: by number of
    columns. carry: of the streams carried for the draft layer."""

    conv: ConvPlan
    gdn: GdnPlans
    windows: Mapping[int, WindowPlan]
    carry: CarryPlan

    @staticmethod
    def of(batch: Batch, config: Qwen4ExpConfig) -> "StatePlan":
        lengths, saves = batch.cu_seqlens.diff().tolist(), batch.saves()
        columns = {config.index.ratio - 1, *map(config.table_window, config.tables)}
        return StatePlan(
            conv=plan_conv(lengths, batch.read_slots, saves, config.conv_width - 1),
            gdn=GdnPlans.of(batch),
            windows={
                width: WindowPlan.of(lengths, batch.read_slots, saves, width) for width in columns
            },
            carry=plan_carry(batch.cu_seqlens, batch.read_slots, saves),
        )
