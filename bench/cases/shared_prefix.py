"""Cases of attention by spans beside even shares: rows with common first pages, as of agents with
one task, and rows without."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from tasuki.bench.measure.timing import Work
from tasuki.model.ops.attention.decode import DecodeWorkspace, paged_attention_decode
from tasuki.model.ops.attention.spans.attention import SpanWorkspace, attend_spans
from tasuki.pycache.layout import PAGE_TOKENS
from tasuki.pycache.parts import FP8_ROWS

from .case import Case, Stage, turns_to_overflow

_SHARED, _OWN = 6_000, 1_000
_AGENTS = (32, 128)
_ALONE = ((1, 50_000), (64, 8_192))


def cases(stage: Stage) -> Iterator[Case]:
    rows = replace(stage, slabs=stage.slabs // 2, kv=FP8_ROWS)
    for of in (stage, rows):
        for batch, context in _ALONE:
            yield _case(of, batch, 0, context)
        for batch in _AGENTS:
            yield _case(of, batch, _SHARED // PAGE_TOKENS, _SHARED + _OWN)


def _case(stage: Stage, batch: int, shared: int, context: int) -> Case:
    """Return a case: `batch` rows of `context` tokens, their first `shared` pages in common."""
    config = stage.model
    own = -(-context // PAGE_TOKENS) - shared
    ids = stage.page_ids(shared + batch * own)
    common = ids[:shared].expand(batch, shared)
    table = torch.cat([common, ids[shared:].view(batch, own)], dim=1).contiguous()
    lengths = stage.ints([context] * batch)
    heads, width = config.query_heads, 2 * (config.query_heads + config.kv_heads)
    q, projected = (
        stage.random(batch, heads, config.head_dim),
        stage.random(batch, width * config.head_dim),
    )
    moved = len(ids) * stage.arena.layout.block_bytes + 3.0 * q.nbytes
    views = stage.arena.views("kv")[: turns_to_overflow(moved)]
    shares = DecodeWorkspace.of(config, batch, stage.device)
    spans = SpanWorkspace.of(config, batch, 1, stage.device)
    pages, counts = list(table.cpu().numpy()), np.full(batch, context, dtype=np.int32)
    spans.groups.plan(pages, counts, counts)

    def by_spans(kv: Tensor) -> Work:
        inputs = (q, projected, config, kv, table, lengths)
        return partial(attend_spans, *inputs, None, stage.rows(batch), spans)

    def by_shares(kv: Tensor) -> Work:
        inputs = (q, projected, config, kv, table, lengths)
        return partial(paged_attention_decode, *inputs, stage.rows(batch), shares)

    of = " over FP8 rows" if stage.kv == FP8_ROWS else ""
    what = f", {shared * PAGE_TOKENS} of them shared" if shared else ""
    return Case(
        f"attention by spans{of}, batch {batch}, {context} tokens{what}",
        [by_spans(kv) for kv in views],
        bytes=moved,
        captured={"even shares": [by_shares(kv) for kv in views]},
        ratios={"even shares": 2.0 if shared else 0.97},
    )
