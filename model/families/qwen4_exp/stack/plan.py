"""What all layers of one forward share: windows, slots, pages, angles, and the table's rows.

Computed once when a batch is bound, so layers have no index arithmetic.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tasuki.model.families.qwen4_exp.config import Qwen4ExpConfig
from tasuki.model.families.qwen4_exp.sparse.plan import Extent, IndexPlan
from tasuki.model.families.qwen4_exp.table.layer import TablePlan
from tasuki.model.families.qwen4_exp.windows import WindowPlan
from tasuki.model.forward import Batch, PicturesUnsupported
from tasuki.model.ops.attention.rope import RotaryAngles
from tasuki.model.ops.draft.reference import CarryPlan, plan_carry
from tasuki.model.ops.gdn.reference import GdnPlan, plan_gdn
from tasuki.model.ops.gdn.reference_conv import ConvPlan, plan_conv
from tasuki.pycache.layout import PAGE_TOKENS

Views = Sequence[Mapping[str, Tensor]]
"""The parts of pages and slots of each layer, by layer and name. The draft layer comes last.
Shapes: kv as in page_rows.py; index [pages, rows, dim]; conv [slots, channels, columns]; ssm
[slots, value_heads, value_dim, key_dim]; index_window [slots, dim, ratio - 1]; ple_window [slots,
count * hidden, columns]; carry [slots, count * hidden]."""


@dataclass(frozen=True)
class StatePlan:
    """Where a forward's states come from, and where they are stored. windows: by number of
    columns. carry: of the streams carried for the draft layer."""

    conv: ConvPlan
    gdn: GdnPlan
    windows: Mapping[int, WindowPlan]
    carry: CarryPlan

    @staticmethod
    def of(batch: Batch, config: Qwen4ExpConfig) -> "StatePlan":
        lengths, saves = batch.cu_seqlens.diff().tolist(), batch.saves()
        columns = {config.index.ratio - 1, *map(config.table_window, config.tables)}
        return StatePlan(
            conv=plan_conv(lengths, batch.read_slots, saves, config.conv_width - 1),
            gdn=plan_gdn(lengths, batch.read_slots, saves, batch.stepped),
            windows={
                width: WindowPlan.of(lengths, batch.read_slots, saves, width) for width in columns
            },
            carry=plan_carry(batch.cu_seqlens, batch.read_slots, saves),
        )


@dataclass(frozen=True)
class BoundForward:
    """Data shared by all layers of one forward of T tokens. places: page id and offset in the page
    of each token, both [T] int64. cos, sin: [T, 1, rotary_dim / 2] float32. index: of the model's
    sparse layers; entries: of the draft layer. tables: by layer."""

    state: StatePlan
    places: tuple[Tensor, Tensor]
    cos: Tensor
    sin: Tensor
    index: IndexPlan
    entries: IndexPlan
    tables: Mapping[int, TablePlan]

    @staticmethod
    def of(batch: Batch, config: Qwen4ExpConfig, angles: RotaryAngles) -> "BoundForward":
        """Bind a batch. Raises PicturesUnsupported for rotary positions other than text's."""
        if batch.rope is not None or batch.pictures:
            raise PicturesUnsupported("this family computes no pictures as yet; send text alone")
        state = StatePlan.of(batch, config)
        lengths, befores = batch.cu_seqlens.diff().tolist(), batch.context_lens.tolist()
        owners = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
        cos, sin = angles.table(batch.positions)
        shape = config.index
        window = state.windows[shape.ratio - 1]

        def index(first: int) -> IndexPlan:
            extent = Extent(first, shape.ratio, shape.chosen)
            return IndexPlan.of(
                extent, lengths, befores, batch.page_table, window, angles, batch.stepped
            )

        tokens = batch.token_ids.split(lengths)
        return BoundForward(
            state=state,
            places=(
                batch.page_table[owners, batch.positions // PAGE_TOKENS],
                batch.positions % PAGE_TOKENS,
            ),
            cos=cos,
            sin=sin,
            index=index(0),
            entries=index(1),
            tables={
                table.layer: TablePlan.of(
                    table,
                    config,
                    tokens,
                    batch.ids_before,
                    state.windows[config.table_window(table)],
                )
                for table in config.tables
            },
        )
