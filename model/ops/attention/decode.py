"""Attention of one token per sequence over its pages, split over all multiprocessors.

The pages of all sequences of a batch, laid end to end, are shared out evenly. Program p of a key
head takes pages [p * share, (p + 1) * share), across sequence borders. So mixed contexts balance,
and the grid does not depend on them (CUDA graphs). Each (program, sequence) pair leaves one partial
result. Partial result p + sequence belongs to such a pair, and these sums are unique.
`attention_merge` joins the partial results and applies the gate.

Reference: `reference.paged_attention`.
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

from .code_columns import head_elements, query_elements
from .merge import GateSource, merge_shares, share_of_program
from .online_softmax import LOG2_E
from .page_rows import holds_fp8
from .paged_tiles import (
    attend_tile,
    attend_whole,
    exact_queries,
    page_tiles,
    tile_keys,
    tile_types,
)


@dataclass(frozen=True)
class DecodeWorkspace:
    """Memory for attention's partial results, for batches of up to `batch` sequences; every layer
    reuses it.

    shares: number of programs per key head if pages hold plain numbers; FP8 rows use twice as many.
    outputs: [2 shares + batch, query_heads, head_dim] float32. weights: [2 shares + batch,
    query_heads] float32, log2 of the sum of exponentials. All launches using one workspace must be
    on one stream.
    """

    shares: int
    outputs: Tensor
    weights: Tensor

    @staticmethod
    def of(config: DeltaNetConfig, batch: int, device: torch.device) -> "DecodeWorkspace":
        """Return memory for one program per multiprocessor of the device, shared among the key
        heads. batch: largest number of sequences."""
        processors = 1
        if device.type == "cuda":
            processors = torch.cuda.get_device_properties(device).multi_processor_count
        shares = max(_PROGRAMS_PER_PROCESSOR * processors // config.kv_heads, 1)
        return DecodeWorkspace.sized(config, batch, device, shares)

    def shares_of(self, kv: Tensor) -> int:
        """Return the number of programs per key head: `shares` for pages of plain numbers, twice as
        many for FP8 rows."""
        return self.shares * (_FP8_PROGRAMS if holds_fp8(kv) else 1)

    def of_tokens(self, tokens: int) -> "DecodeWorkspace":
        """Return memory for the same number of rows with several tokens each. A row's tokens count
        as further heads."""
        places, heads, dim = self.outputs.shape
        return DecodeWorkspace(
            self.shares,
            self.outputs.new_empty(places, tokens * heads, dim),
            self.weights.new_empty(places, tokens * heads),
        )

    @staticmethod
    def sized(
        config: DeltaNetConfig, batch: int, device: torch.device, shares: int
    ) -> "DecodeWorkspace":
        rows, heads = _FP8_PROGRAMS * shares + batch, config.query_heads
        return DecodeWorkspace(
            shares,
            torch.empty(rows, heads, config.head_dim, dtype=torch.float32, device=device),
            torch.empty(rows, heads, dtype=torch.float32, device=device),
        )


_PROGRAMS_PER_PROCESSOR = 1
_WARPS, _STAGES = 4, 5
_FP8_PROGRAMS = 2
"""Factor of the number of programs for FP8 rows. Their tiles are half as long, so two programs
share a multiprocessor: one converts codes while the other waits for its own."""


def paged_attention_decode(
    q: Tensor,
    projected: Tensor,
    config: DeltaNetConfig,
    kv: Tensor,
    page_table: Tensor,
    context_lens: Tensor,
    rows: Tensor,
    workspace: DecodeWorkspace,
) -> Tensor:
    """Compute attention of one token per sequence over its pages. Return the gated output [B,
    query_heads * head_dim] in q's dtype; rows from rows[0] on are unwritten.

    q: [B, query_heads, head_dim] contiguous, after norm and rotary. projected: [B, query_heads x
    (q, gate) | ...], any row stride, has the gate. kv: [pages, kv_heads, 2, page_tokens, head_dim],
    dense. page_table: [B, pages per row]. context_lens: [B], number of keys of each row, its own
    included, at least 1. rows: [1], number of valid rows. These three are int32 on the device.
    """
    batch, heads, dim = q.shape
    group = heads // config.kv_heads
    group_block = max(triton.next_power_of_2(group), 16)
    tile = tile_keys(q)
    shares = workspace.shares_of(kv)
    batch_block = triton.next_power_of_2(batch)
    _attention_decode_kernel[(config.kv_heads, shares)](
        q,
        *page_tiles(kv, tile),
        page_table,
        page_table.stride(0),
        context_lens,
        rows,
        workspace.outputs,
        workspace.weights,
        batch,
        dim**-0.5 * LOG2_E.value,
        KV_HEADS=config.kv_heads,
        GROUP=group,
        GROUP_BLOCK=group_block,
        HEAD_DIM=dim,
        PAGE_TOKENS=PAGE_TOKENS,
        TILE=tile,
        BATCH_BLOCK=batch_block,
        num_warps=_WARPS,
        num_stages=_STAGES if q.element_size() == 2 else 1,
        **dependent(q),
    )
    return merge_shares(
        workspace.outputs,
        workspace.weights,
        GateSource.of(projected, dim),
        context_lens,
        rows,
        shares,
        q,
        PAGE_TOKENS,
    )


@triton.jit(do_not_specialize=["page_table_stride", "batch"])
def _attention_decode_kernel(
    q,
    kv,
    scales,
    page_table,
    page_table_stride,
    context_lens,
    rows,
    outputs,
    weights,
    batch,
    scale,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_BLOCK: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE_TOKENS: tl.constexpr,
    TILE: tl.constexpr,
    BATCH_BLOCK: tl.constexpr,
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
    query = tl.arange(0, GROUP_BLOCK)
    of_query = query_elements(scales, HEAD_DIM)
    element = head_elements(scales, HEAD_DIM)
    tiles_a_page: tl.constexpr = PAGE_TOKENS // TILE
    wait_for_inputs(DEPENDENT)
    while position < stop:
        begin = tl.sum(tl.where(every == sequence - 1, ends, 0), axis=0)
        end = tl.sum(tl.where(every == sequence, ends, 0), axis=0)
        last = tl.minimum(stop, end)
        length = tl.load(context_lens + sequence)
        table = page_table + sequence.to(tl.int64) * page_table_stride
        head = kv_head * GROUP + query
        rows_of_q = q + (sequence.to(tl.int64) * KV_HEADS * GROUP + head)[:, None] * HEAD_DIM
        queries = tl.load(rows_of_q + of_query, mask=(query < GROUP)[:, None], other=0.0)
        output = tl.zeros([GROUP_BLOCK, HEAD_DIM], tl.float32)
        largest = tl.full([GROUP_BLOCK], float("-inf"), tl.float32)
        total = tl.zeros([GROUP_BLOCK], tl.float32)
        queries, score_scale = exact_queries(queries, scale, scales)

        first_tile = (position - begin) * tiles_a_page
        last_tile = tl.minimum((last - begin) * tiles_a_page, (length + TILE - 1) // TILE)
        full = tl.minimum(last_tile, length // TILE)
        output, largest, total = attend_whole(
            queries, kv, scales, table, kv_head, first_tile, full, output, largest, total,
            score_scale, KV_HEADS, PAGE_TOKENS, TILE,
        )  # fmt: skip
        if full < last_tile:
            output, largest, total = attend_tile(
                queries, kv, scales, table, kv_head, full, None, length, output, largest, total,
                score_scale, KV_HEADS, PAGE_TOKENS, TILE,
            )  # fmt: skip
        place = (program + sequence).to(tl.int64) * (KV_HEADS * GROUP) + head
        tl.store(
            outputs + place[:, None] * HEAD_DIM + element,
            output / total[:, None],
            mask=(query < GROUP)[:, None],
        )
        tl.store(weights + place, largest + tl.log2(total), mask=query < GROUP)
        position = last
        sequence += 1


def compile_specs() -> list[KernelSpec]:
    """Return the specs to compile the kernels ahead of time, in the shapes of the 9B model,
    bfloat16 and float32, numbers and FP8 rows."""
    heads = {"KV_HEADS": 4, "GROUP": 4, "GROUP_BLOCK": 16, "HEAD_DIM": 256, "PAGE_TOKENS": 64}

    def spec(name: str, dtype: str, tile: int, stages: int, *, fp8: bool = False) -> KernelSpec:
        types, absent = tile_types(dtype, tile, 256, fp8=fp8)
        return KernelSpec.of(
            name,
            _attention_decode_kernel,
            heads | {"TILE": tile, "BATCH_BLOCK": 32, "DEPENDENT": True} | absent,
            _WARPS,
            stages,
            pointers=f"*{dtype}",
            fp32="outputs weights",
            i32="page_table context_lens rows",
            **types,
        )

    return [
        spec("attention_decode", "bf16", 64, _STAGES),
        spec("attention_decode_fp32", "fp32", 16, 1),
        spec("attention_decode_fp8_rows", "bf16", 64, _STAGES, fp8=True),
        spec("attention_decode_fp32_fp8_rows", "fp32", 16, 1, fp8=True),
    ]
