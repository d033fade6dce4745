"""Attention to verify drafts: the last tokens of each sequence (a token and its drafts) attend to
its pages. Every key and value is read once for all of these tokens.

The pages are shared out as in `decode.py`. One matrix instruction multiplies a tile of keys with a
row's queries, for all its tokens and all query heads of the key head. In the last tiles a token
sees the keys up to its own. `attention_merge` joins partial results and counts a row's tokens as
further heads.

Reference: `reference.paged_attention`.
"""

import triton
import triton.language as tl
from torch import Tensor

from tasuki.model.config import DeltaNetConfig
from tasuki.pycache.layout import PAGE_TOKENS
from tasuki.utils.triton.instructions import dependent, wait_for_inputs
from tasuki.utils.triton.kernel_spec import KernelSpec

from .code_columns import head_elements, query_elements
from .decode import DecodeWorkspace
from .merge import GateSource, merge_shares, share_of_program
from .online_softmax import LOG2_E
from .page_rows import holds_fp8
from .paged_tiles import attend_pages, page_tiles, tile_keys, tile_types

_STAGES = 5
_STAGES_OF_ROWS = 7
"""Number of pipeline stages for FP8 rows with few queries. Two programs then have memory for three
tiles each."""
_STAGES_OF_MANY, _MANY_QUERIES = 3, 64
"""Number of pipeline stages for _MANY_QUERIES queries or more. Five stages of bfloat16 tiles would
exceed shared memory."""
_LEAST_QUERIES = 16
_QUERIES_A_WARP = 8
"""Number of queries per warp. With more queries a program gets more warps, so each warp holds
equally much of the output."""
_FEWEST_WARPS, _MOST_WARPS = 4, 8


def paged_attention_verify(
    q: Tensor,
    projected: Tensor,
    config: DeltaNetConfig,
    kv: Tensor,
    page_table: Tensor,
    context_lens: Tensor,
    counts: Tensor,
    rows: Tensor,
    workspace: DecodeWorkspace,
    first_key: int = 0,
) -> Tensor:
    """Compute attention of T tokens per sequence over its pages. Return the gated output [B * T,
    query_heads * head_dim] in q's dtype; rows from rows[0] on are unwritten.

    q: [B * T, query_heads, head_dim]; row r's T tokens begin at r * T. projected: in_proj's result
    with the gates, in the same order. kv: as for `paged_attention_decode`. page_table: [B, pages
    per row]. context_lens: [B], number of keys of each row, all its tokens included. counts: [B],
    number of valid tokens of each row, 1 to T; tokens beyond see the last valid one's keys. rows:
    [1], number of valid rows. These four are int32 on the device. workspace: memory for B rows of T
    times as many heads. first_key: position of the first key seen by any query.
    """
    batch = len(counts)
    tokens, heads, dim = q.shape[0] // batch, config.query_heads, config.head_dim
    group = heads // config.kv_heads
    queries = max(triton.next_power_of_2(tokens * group), _LEAST_QUERIES)
    tile = tile_keys(q)
    shares = workspace.shares_of(kv)
    _attention_verify_kernel[(config.kv_heads, shares)](
        q,
        *page_tiles(kv, tile),
        page_table,
        page_table.stride(0),
        context_lens,
        counts,
        rows,
        workspace.outputs,
        workspace.weights,
        batch,
        dim**-0.5 * LOG2_E.value,
        TOKENS=tokens,
        KV_HEADS=config.kv_heads,
        GROUP=group,
        QUERIES=queries,
        HEAD_DIM=dim,
        PAGE_TOKENS=PAGE_TOKENS,
        TILE=tile,
        BATCH_BLOCK=triton.next_power_of_2(batch),
        FIRST_KEY=first_key,
        num_warps=warps_of(queries),
        num_stages=_stages(queries, fp8=holds_fp8(kv)) if q.element_size() == 2 else 1,
        **dependent(q),
    )
    merged = merge_shares(
        workspace.outputs,
        workspace.weights,
        GateSource.of(projected, dim),
        context_lens,
        rows,
        shares,
        q.view(batch, tokens * heads, dim),
        PAGE_TOKENS,
        tokens,
    )
    return merged.view(batch * tokens, heads * dim)


def warps_of(queries: int) -> int:
    """Return the number of warps of a program with so many queries."""
    return min(max(queries // _QUERIES_A_WARP, _FEWEST_WARPS), _MOST_WARPS)


def _stages(queries: int, *, fp8: bool) -> int:
    if fp8:
        return _STAGES_OF_ROWS if queries <= _LEAST_QUERIES else _STAGES
    return _STAGES if queries < _MANY_QUERIES else _STAGES_OF_MANY


@triton.jit(do_not_specialize=["page_table_stride", "batch"])
def _attention_verify_kernel(
    q,
    kv,
    scales,
    page_table,
    page_table_stride,
    context_lens,
    counts,
    rows,
    outputs,
    weights,
    batch,
    scale,
    TOKENS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    QUERIES: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE_TOKENS: tl.constexpr,
    TILE: tl.constexpr,
    BATCH_BLOCK: tl.constexpr,
    FIRST_KEY: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    # Heads of one page run side by side, so their reads meet in the same memory rows.
    kv_head = tl.program_id(0)
    program = tl.program_id(1)
    # Values read before the wait are older than the previous kernel.
    ends, share = share_of_program(
        context_lens, rows, batch, tl.num_programs(1), PAGE_TOKENS, BATCH_BLOCK
    )
    every = tl.arange(0, BATCH_BLOCK)
    position = program * share
    stop = tl.minimum(position + share, tl.max(ends, axis=0))
    sequence = tl.sum((ends <= position).to(tl.int32), axis=0)
    query = tl.arange(0, QUERIES)
    token = query // GROUP
    head = token * (KV_HEADS * GROUP) + kv_head * GROUP + query % GROUP
    exists = query < TOKENS * GROUP
    of_query = query_elements(scales, HEAD_DIM)
    element = head_elements(scales, HEAD_DIM)
    tiles_a_page: tl.constexpr = PAGE_TOKENS // TILE
    HEADS: tl.constexpr = TOKENS * KV_HEADS * GROUP
    wait_for_inputs(DEPENDENT)
    while position < stop:
        begin = tl.sum(tl.where(every == sequence - 1, ends, 0), axis=0)
        end = tl.sum(tl.where(every == sequence, ends, 0), axis=0)
        last = tl.minimum(stop, end)
        length = tl.load(context_lens + sequence)
        before = length - tl.load(counts + sequence)
        table = page_table + sequence.to(tl.int64) * page_table_stride
        rows_of_q = q + (sequence.to(tl.int64) * HEADS + head)[:, None] * HEAD_DIM
        queries = tl.load(rows_of_q + of_query, mask=exists[:, None], other=0.0)
        output = tl.zeros([QUERIES, HEAD_DIM], tl.float32)
        largest = tl.full([QUERIES], float("-inf"), tl.float32)
        total = tl.zeros([QUERIES], tl.float32)
        first_tile = (position - begin) * tiles_a_page
        last_tile = tl.minimum((last - begin) * tiles_a_page, (length + TILE - 1) // TILE)
        # Tiles before this are seen by the first token, and so by all.
        full = tl.minimum(last_tile, (before + 1) // TILE)
        if FIRST_KEY > 0:
            full = tl.minimum(first_tile, full)
        output, largest, total = attend_pages(
            queries, kv, scales, table, kv_head, before + token, length, first_tile, full,
            last_tile, output, largest, total, scale, KV_HEADS, PAGE_TOKENS, TILE, FIRST_KEY,
        )  # fmt: skip
        place = (program + sequence).to(tl.int64) * HEADS + head
        # A share may have only keys behind a row's first tokens, and these tokens see none of it.
        seen = total > 0
        divisor = tl.where(seen, total, 1.0)
        tl.store(
            outputs + place[:, None] * HEAD_DIM + element,
            output / divisor[:, None],
            mask=exists[:, None],
        )
        weight = tl.where(seen, largest + tl.log2(divisor), float("-inf"))
        tl.store(weights + place, weight, mask=exists)
        position = last
        sequence += 1


def compile_specs() -> list[KernelSpec]:
    """Return the specs to compile the kernels ahead of time. Cases: 3 and 7 drafts with the heads
    of 9B and of 35B-A3B, and one token of the draft layer; each for bfloat16 and for FP8 rows."""

    def spec(
        drafts: int, kv_heads: int, group: int, first_key: int = 0, *, fp8: bool = False
    ) -> KernelSpec:
        types, absent = tile_types("bf16", 64, 256, fp8=fp8)
        tokens = drafts + 1
        queries = max(triton.next_power_of_2(tokens * group), _LEAST_QUERIES)
        heads = {"TOKENS": tokens, "KV_HEADS": kv_heads, "GROUP": group, "QUERIES": queries}
        sizes = {"HEAD_DIM": 256, "PAGE_TOKENS": 64, "TILE": 64, "BATCH_BLOCK": 32}
        return KernelSpec.of(
            f"attention_verify_{drafts}_drafts_of_{group}_heads{'_fp8_rows' if fp8 else ''}",
            _attention_verify_kernel,
            heads | sizes | {"FIRST_KEY": first_key, "DEPENDENT": True} | absent,
            warps_of(queries),
            _stages(queries, fp8=fp8),
            fp32="outputs weights",
            i32="page_table context_lens counts rows",
            **types,
        )

    shapes = ((3, 4, 4), (7, 4, 4), (3, 2, 8), (7, 2, 8), (0, 4, 4, 1))
    return [spec(*shape, fp8=fp8) for fp8 in (False, True) for shape in shapes]
