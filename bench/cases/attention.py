"""Cases of paged attention: one token a sequence on long contexts (decode), and chunks of a prompt
(prefill)."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from tasuki.model.ops.attention.decode import DecodeWorkspace, paged_attention_decode
from tasuki.model.ops.attention.prefill import paged_attention_prefill
from tasuki.model.ops.attention.prefill_tiles import PrefillTiles
from tasuki.model.ops.attention.verify import paged_attention_verify
from tasuki.pycache.layout import PAGE_TOKENS
from tasuki.pycache.parts import FP8_ROWS

from .case import Case, Stage, turns_to_overflow

_DECODE = ((1, 50_000), (4, 50_000), (16, 50_000), (32, 50_000), (64, 8_192))
_DECODE_ROWS = ((1, 50_000), (16, 50_000), (64, 8_192))
_DRAFTED = ((1, 50_000), (16, 8_192), (64, 8_192))
_TOKENS = 4
"""Tokens of one sequence in a step with three drafts."""
# (Tokens of this forward, tokens before them)
_PREFILL = ((800, 50_000), (8_192, 0), (8_192, 41_808), (50_000, 0))


def cases(stage: Stage) -> Iterator[Case]:
    rows = replace(stage, slabs=stage.slabs // 4, kv=FP8_ROWS)
    for of, points in ((stage, _DECODE), (rows, _DECODE_ROWS)):
        for batch, context in points:
            yield _decode(of, batch, context)
        for batch, context in _DRAFTED:
            yield _verify(of, batch, context)
    for tokens, context in _PREFILL:
        yield _prefill(stage, tokens, context)
        yield _prefill(rows, tokens, context)


def _of(stage: Stage) -> str:
    return " over FP8 rows" if stage.kv == FP8_ROWS else ""


@dataclass(frozen=True)
class _Pages:
    """The pages of `batch` requests of equal length. table: page ids, [batch, pages] int32.
    lengths: tokens, [batch] int32. bytes: KV bytes read by one launch."""

    table: Tensor
    lengths: Tensor
    bytes: float

    @staticmethod
    def of(stage: Stage, batch: int, context: int) -> "_Pages":
        pages = -(-context // PAGE_TOKENS)
        return _Pages(
            stage.page_ids(batch * pages).view(batch, pages),
            stage.ints([context] * batch),
            batch * context * stage.arena.layout.block_bytes / PAGE_TOKENS,
        )


def _decode(stage: Stage, batch: int, context: int) -> Case:
    config = stage.model
    pages = _Pages.of(stage, batch, context)
    q, projected = _queries(stage, batch)
    rows, workspace = stage.rows(batch), DecodeWorkspace.of(config, batch, stage.device)
    read = (pages.table, pages.lengths, rows, workspace)
    return Case(
        f"decode attention{_of(stage)}, batch {batch}, {context} tokens",
        [
            partial(paged_attention_decode, q, projected, config, kv, *read)
            for kv in stage.arena.views("kv")[: turns_to_overflow(pages.bytes)]
        ],
        bytes=pages.bytes + 3 * q.nbytes,
        share=0.85,
    )


def _verify(stage: Stage, batch: int, context: int) -> Case:
    config = stage.model
    pages = _Pages.of(stage, batch, context)
    q, projected = _queries(stage, batch * _TOKENS)
    counts, rows = stage.ints([_TOKENS] * batch), stage.rows(batch)
    workspace = DecodeWorkspace.of(config, batch, stage.device).of_tokens(_TOKENS)
    read = (pages.table, pages.lengths, counts, rows, workspace)
    return Case(
        f"attention of rows with drafts{_of(stage)}, {batch} of {_TOKENS} tokens, {context} tokens",
        [
            partial(paged_attention_verify, q, projected, config, kv, *read)
            for kv in stage.arena.views("kv")[: turns_to_overflow(pages.bytes)]
        ],
        bytes=pages.bytes + 3 * q.nbytes,
    )


def _prefill(stage: Stage, tokens: int, context: int) -> Case:
    config = stage.model
    table = stage.page_ids(-(-(tokens + context) // PAGE_TOKENS))[None]
    q, projected = _queries(stage, tokens)
    tiles = PrefillTiles.of([tokens], [context], config, torch.bfloat16, stage.device)
    pairs = tokens * context + tokens * (tokens + 1) / 2
    kv = stage.arena.views("kv")[0]
    return Case(
        f"prefill attention{_of(stage)}, {tokens} tokens behind {context}",
        [partial(paged_attention_prefill, q, projected, config, kv, table, tiles)],
        bytes=(tokens + context) * stage.arena.layout.block_bytes / PAGE_TOKENS + 3 * q.nbytes,
        flops=4.0 * config.query_heads * config.head_dim * pairs,
        captured={} if context or _of(stage) else {"torch SDPA": [_dense(stage, q)]},
    )


def _queries(stage: Stage, tokens: int) -> tuple[Tensor, Tensor]:
    config = stage.model
    width = 2 * (config.query_heads + config.kv_heads) * config.head_dim
    return (
        stage.random(tokens, config.query_heads, config.head_dim),
        stage.random(tokens, width),
    )


def _dense(stage: Stage, q: Tensor) -> "partial[Tensor]":
    """Return a call of causal attention over contiguous keys and values, without the output
    gate."""
    config, tokens = stage.model, q.shape[0]
    k, v = (stage.random(1, config.kv_heads, tokens, config.head_dim) for _ in range(2))
    return partial(
        functional.scaled_dot_product_attention,
        q.transpose(0, 1)[None],
        k,
        v,
        is_causal=True,
        enable_gqa=True,
    )
