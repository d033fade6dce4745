"""Attention of a step's rows by spans of their keys: one token a row, or a token and its drafts.

A unit of work is one span of one row, or one span of several rows with its pages in common. Then
the queries of all of these rows meet each key in one matrix instruction, and its page is read once.
The instruction has the same shape for one row and for several, so a row's bits do not depend on
others.
Each (row, span) pair leaves a partial result; `merge_spans` joins them in the order of spans.

Units are dealt to programs in turns: first groups, then whole spans of single rows, then last
spans. The grid does not depend on rows (CUDA graphs).

Reference: `reference.paged_attention`; of groups: the same rows alone.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from tasuki.model.config import DeltaNetConfig
from tasuki.pycache.layout import PAGE_TOKENS
from tasuki.utils.triton.instructions import dependent, wait_for_inputs
from tasuki.utils.triton.kernel_spec import KernelSpec

from ..code_columns import head_elements, query_elements
from ..merge import GateSource
from ..online_softmax import LOG2_E
from ..page_rows import holds_fp8
from ..paged_tiles import (
    attend_tile,
    attend_whole,
    exact_queries,
    page_tiles,
    tile_keys,
    tile_types,
)
from ..verify import warps_of
from .groups import SpanGroups
from .merge import merge_spans, span_pages
from .rule import SPANS, SpanRule

_PROGRAMS = 2
"""Programs of one multiprocessor: one reads while the other starts or ends a unit."""
_LEAST_QUERIES = 16
_LEAST_BATCH = 32
"""Least size of the block for finding a unit's row. Fewer rows use it too, without a compilation of
their own."""
_STAGES, _STAGES_OF_ROWS = 3, 7
"""Numbers of pipeline stages for plain numbers and for FP8 rows. Two programs then fit a
multiprocessor."""


def _queries(config: DeltaNetConfig, tokens: int) -> int:
    """Return the rows of the matrix instruction for rows of up to `tokens` tokens. More would leave
    room for more rows of a group, and measured slower."""
    own: int = triton.next_power_of_2(tokens * (config.query_heads // config.kv_heads))
    return max(own, _LEAST_QUERIES)


@dataclass(frozen=True)
class SpanWorkspace:
    """Memory for the partial results of up to `batch` rows; every layer reuses it.

    queries: rows of the matrix instruction of every unit. programs: number of programs per key
    head. groups: the plan of each step. outputs: [batch, most spans, heads, head_dim] float32.
    weights: [batch, most spans, heads] float32, log2 of the sum of exponentials. heads: query heads
    of all tokens of a row. All launches using one workspace must be on one stream.
    """

    queries: int
    programs: int
    groups: SpanGroups
    outputs: Tensor
    weights: Tensor

    @staticmethod
    def of(
        config: DeltaNetConfig,
        batch: int,
        tokens: int,
        device: torch.device,
        rule: SpanRule = SPANS,
    ) -> "SpanWorkspace":
        """Return memory for rows of up to `tokens` tokens."""
        processors = 1
        if device.type == "cuda":
            processors = torch.cuda.get_device_properties(device).multi_processor_count
        queries, group = _queries(config, tokens), config.query_heads // config.kv_heads
        places = (batch, rule.most_spans, tokens * config.query_heads)
        return SpanWorkspace(
            queries,
            max(_PROGRAMS * processors // config.kv_heads, 1),
            SpanGroups.empty(batch, rule, queries // (tokens * group), device),
            torch.empty(*places, config.head_dim, dtype=torch.float32, device=device),
            torch.empty(places, dtype=torch.float32, device=device),
        )


def attend_spans(
    q: Tensor,
    projected: Tensor,
    config: DeltaNetConfig,
    kv: Tensor,
    page_table: Tensor,
    context_lens: Tensor,
    counts: Tensor | None,
    rows: Tensor,
    workspace: SpanWorkspace,
) -> Tensor:
    """Compute attention of T tokens per row over its pages. Return the gated output [B * T,
    query_heads * head_dim] in q's dtype; rows from rows[0] on are unwritten.

    q: [B * T, query_heads, head_dim]; row r's T tokens begin at r * T. projected: in_proj's result
    with the gates, in the same order. kv: as for `paged_attention_decode`. page_table: [B, pages
    per row]. context_lens: [B], number of keys of each row, all its tokens included. counts: [B],
    number of valid tokens of each row, 1 to T; None: T is 1. rows: [1], number of valid rows. These
    are int32 on the device. workspace: memory for at least B rows, with the plan of these rows.
    """
    batch = len(context_lens)
    tokens, heads, dim = q.shape[0] // batch, config.query_heads, config.head_dim
    groups, queries, tile = workspace.groups, workspace.queries, tile_keys(q)
    rule = groups.rule
    stages = _STAGES_OF_ROWS if holds_fp8(kv) else _STAGES
    _attention_spans_kernel[(config.kv_heads, workspace.programs)](
        q,
        *page_tiles(kv, tile),
        page_table,
        page_table.stride(0),
        context_lens,
        counts,
        rows,
        groups.order,
        groups.covered,
        groups.units,
        groups.count,
        workspace.outputs,
        workspace.weights,
        batch,
        rule.least_pages,
        rule.most_spans,
        dim**-0.5 * LOG2_E.value,
        TOKENS=tokens,
        KV_HEADS=config.kv_heads,
        GROUP=heads // config.kv_heads,
        QUERIES=queries,
        HEAD_DIM=dim,
        PAGE_TOKENS=PAGE_TOKENS,
        TILE=tile,
        BATCH_BLOCK=max(triton.next_power_of_2(batch), _LEAST_BATCH),
        num_warps=warps_of(queries),
        num_stages=stages if q.element_size() == 2 else 1,
        **dependent(q),
    )
    merged = merge_spans(
        workspace.outputs,
        workspace.weights,
        GateSource.of(projected, dim),
        context_lens,
        rows,
        rule,
        q.view(batch, tokens * heads, dim),
        tokens,
    )
    return merged.view(batch * tokens, heads * dim)


@triton.jit
def _at(values, every, place):
    """Return values[place], for values [N] in registers."""
    return tl.sum(tl.where(every == place, values, 0), axis=0)


@triton.jit(do_not_specialize=["page_table_stride", "batch", "least_pages", "most_spans"])
def _attention_spans_kernel(
    q,
    kv,
    scales,
    page_table,
    page_table_stride,
    context_lens,
    counts,
    rows,
    order,
    covered,
    units,
    unit_count,
    outputs,
    weights,
    batch,
    least_pages,
    most_spans,
    scale,
    TOKENS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    QUERIES: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE_TOKENS: tl.constexpr,
    TILE: tl.constexpr,
    BATCH_BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    # Heads of one page run side by side, so their reads meet in the same memory rows.
    kv_head = tl.program_id(0)
    unit = tl.program_id(1)
    # Values read before the wait are older than the previous kernel.
    every = tl.arange(0, BATCH_BLOCK)
    live = every < tl.minimum(batch, tl.load(rows, cache_modifier=".cg"))
    row_at = tl.load(order + every, mask=live, other=0, cache_modifier=".cg")
    lengths = tl.load(context_lens + row_at, mask=live, other=0, cache_modifier=".cg")
    before = lengths - 1
    if counts is not None:
        before = lengths - tl.load(counts + row_at, mask=live, other=0, cache_modifier=".cg")
    pages, sizes = span_pages(lengths, least_pages, most_spans, PAGE_TOKENS)
    whole = tl.where(live, (before + 1) // (sizes * PAGE_TOKENS), 0)
    in_groups = tl.load(covered + every, mask=live, other=0, cache_modifier=".cg")
    whole_ends = tl.cumsum(whole - in_groups, axis=0)
    last_ends = tl.cumsum((pages + sizes - 1) // sizes - whole, axis=0)
    groups = tl.load(unit_count, cache_modifier=".cg")
    own = groups + tl.max(whole_ends, axis=0)
    total = own + tl.max(last_ends, axis=0)
    query = tl.arange(0, QUERIES)
    member = query // (TOKENS * GROUP)
    token = query // GROUP % TOKENS
    head = token * (KV_HEADS * GROUP) + kv_head * GROUP + query % GROUP
    of_query = query_elements(scales, HEAD_DIM)
    element = head_elements(scales, HEAD_DIM)
    tiles_a_page: tl.constexpr = PAGE_TOKENS // TILE
    HEADS: tl.constexpr = TOKENS * KV_HEADS * GROUP
    wait_for_inputs(DEPENDENT)
    while unit < total:
        members = 1
        if unit < groups:
            place = tl.load(units + 3 * unit)
            members = tl.load(units + 3 * unit + 1)
            span = tl.load(units + 3 * unit + 2)
        elif unit < own:
            at = unit - groups
            place = tl.sum((whole_ends <= at).to(tl.int32), axis=0)
            span = at - _at(whole_ends, every, place - 1) + _at(in_groups, every, place)
        else:
            at = unit - own
            place = tl.sum((last_ends <= at).to(tl.int32), axis=0)
            span = at - _at(last_ends, every, place - 1) + _at(whole, every, place)
        length = _at(lengths, every, place)
        size = _at(sizes, every, place)
        seen = _at(before, every, place)
        exists = member < members
        row = tl.load(order + place + member, mask=exists, other=0).to(tl.int64)
        table = page_table + _at(row_at, every, place).to(tl.int64) * page_table_stride
        rows_of_q = q + (row * HEADS + head)[:, None] * HEAD_DIM
        queries = tl.load(rows_of_q + of_query, mask=exists[:, None], other=0.0)
        output = tl.zeros([QUERIES, HEAD_DIM], tl.float32)
        largest = tl.full([QUERIES], float("-inf"), tl.float32)
        total_weight = tl.zeros([QUERIES], tl.float32)
        first_tile = span * size * tiles_a_page
        last_tile = tl.minimum(first_tile + size * tiles_a_page, (length + TILE - 1) // TILE)
        # Tiles before this are seen by the first token, and so by all.
        full = tl.minimum(last_tile, (seen + 1) // TILE)
        queries, score_scale = exact_queries(queries, scale, scales)
        output, largest, total_weight = attend_whole(
            queries, kv, scales, table, kv_head, first_tile, full, output, largest, total_weight,
            score_scale, KV_HEADS, PAGE_TOKENS, TILE,
        )  # fmt: skip
        # These are few tiles, and more stages would take memory from the other program.
        for tile in tl.range(tl.maximum(first_tile, full), last_tile, num_stages=1):
            output, largest, total_weight = attend_tile(
                queries, kv, scales, table, kv_head, tile, seen + token, length, output, largest,
                total_weight, score_scale, KV_HEADS, PAGE_TOKENS, TILE,
            )  # fmt: skip
        target = (row * most_spans + span) * HEADS + head
        # A span may have only keys behind a row's first tokens, and these tokens see none of it.
        sees = total_weight > 0
        divisor = tl.where(sees, total_weight, 1.0)
        tl.store(
            outputs + target[:, None] * HEAD_DIM + element,
            output / divisor[:, None],
            mask=exists[:, None],
        )
        weight = tl.where(sees, largest + tl.log2(divisor), float("-inf"))
        tl.store(weights + target, weight, mask=exists)
        unit += tl.num_programs(1)


def compile_specs() -> list[KernelSpec]:
    """Return the specs to compile the kernels ahead of time: one token and three drafts with the
    heads of 9B, bfloat16 and FP8 rows."""

    def spec(name: str, tokens: int, *, fp8: bool) -> KernelSpec:
        types, absent = tile_types("bf16", PAGE_TOKENS, 256, fp8=fp8)
        heads = {"TOKENS": tokens, "KV_HEADS": 4, "GROUP": 4, "QUERIES": 16, "HEAD_DIM": 256}
        sizes = {"PAGE_TOKENS": PAGE_TOKENS, "TILE": PAGE_TOKENS, "BATCH_BLOCK": 32}
        given, counts = ({"counts": None}, "") if tokens == 1 else ({}, " counts")
        return KernelSpec.of(
            f"attention_spans_{name}{'_fp8_rows' if fp8 else ''}",
            _attention_spans_kernel,
            heads | sizes | {"DEPENDENT": True} | given | absent,
            warps_of(16),
            _STAGES_OF_ROWS if fp8 else _STAGES,
            fp32="outputs weights",
            i32=f"page_table context_lens rows order covered units unit_count{counts}",
            **types,
        )

    return [
        spec(name, tokens, fp8=fp8)
        for fp8 in (False, True)
        for name, tokens in (("decode", 1), ("three_drafts", 4))
    ]
