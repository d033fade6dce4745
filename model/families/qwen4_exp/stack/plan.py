"""What all layers of one forward share: windows, slots, pages, angles, and the table's rows.

Computed once when a batch is bound, so layers have no index arithmetic.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tasuki.model.families.qwen4_exp.config import Qwen4ExpConfig
from tasuki.model.families.qwen4_exp.sparse.choice import Extent
from tasuki.model.families.qwen4_exp.sparse.plan import IndexPlan
from tasuki.model.families.qwen4_exp.states import StatePlan
from tasuki.model.families.qwen4_exp.table.layer import TablePlan
from tasuki.model.forward import Batch, PicturesUnsupported
from tasuki.model.ops.attention.rope import RotaryAngles
from tasuki.pycache.arena import Arena
from tasuki.pycache.layout import PAGE_TOKENS

Views = Sequence[Mapping[str, Tensor]]
"""The parts of pages and slots of each layer, by layer and name. The draft layer comes last.
Shapes: kv as in page_rows.py; index [pages, rows, dim]; conv [slots, channels, columns]; ssm
[slots, value_heads, value_dim, key_dim]; index_window [slots, dim, ratio - 1]; ple_window [slots,
count * hidden, columns]; carry [slots, count * hidden]."""


def views_of(arena: Arena) -> Views:
    """Return the views of all parts of an arena."""
    return [
        {part.name: arena.view(layer, part.name) for part in (*cache.page, *cache.slot)}
        for layer, cache in enumerate(arena.layout.layers)
    ]


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
        """Bind a batch of the model's layers. Raises PicturesUnsupported for rotary positions other
        than text's."""
        entries = BoundForward.of_entries(batch, config, angles)
        tokens = batch.token_ids.split_with_sizes(batch.cu_seqlens.diff().tolist())
        tables = {}
        for table in config.tables:
            window = entries.state.windows[config.table_window(table)]
            plan = TablePlan.of(table, config, tokens, batch.ids_before, window)
            tables[table.layer] = plan
        index = _index_plan(0, batch, config, angles, entries.state)
        return replace(entries, index=index, tables=tables)

    @staticmethod
    def of_entries(batch: Batch, config: Qwen4ExpConfig, angles: RotaryAngles) -> "BoundForward":
        """Bind a batch of the draft layer alone. Raises PicturesUnsupported."""
        if batch.rope is not None or batch.pictures:
            raise PicturesUnsupported("this family computes no pictures as yet; send text alone")
        state = StatePlan.of(batch, config)
        entries = _index_plan(1, batch, config, angles, state)
        counts = batch.cu_seqlens.diff()
        owners = torch.repeat_interleave(torch.arange(len(counts)), counts)
        cos, sin = angles.table(batch.positions)
        pages = batch.page_table[owners, batch.positions // PAGE_TOKENS]
        places = pages, batch.positions % PAGE_TOKENS
        return BoundForward(state, places, cos, sin, entries, entries, {})


def _index_plan(
    first: int, batch: Batch, config: Qwen4ExpConfig, angles: RotaryAngles, state: StatePlan
) -> IndexPlan:
    """Return the index plan of layers with entries from position `first` on."""
    shape = config.index
    return IndexPlan.of(
        Extent(first, shape.ratio, shape.chosen),
        batch.cu_seqlens.diff().tolist(),
        batch.context_lens.tolist(),
        batch.page_table,
        state.windows[shape.ratio - 1],
        angles,
        batch.stepped,
    )
