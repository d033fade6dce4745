"""Causal attention of a prompt forward: each sequence's new tokens over its pages, the context
before them included.

A program owns a tile of tokens of one sequence and one query head. It goes through the pages of its
sequence: whole pages first, then those cut by the diagonal or the context's end. With too few tiles
to fill the device every tile's pages are split, and `attention_merge` joins the parts. This
forward's keys and values must be in their pages already; FP8 rows are converted to numbers first
(tile_groups.py), except in float32. Reference: `reference.paged_attention`, times sigmoid of the
gate.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from tasuki.model.config import DeltaNetConfig
from tasuki.pycache.layout import PAGE_TOKENS
from tasuki.utils.triton.kernel_spec import KernelSpec

from .code_columns import head_elements, query_elements
from .gathered_rows import turned_pages
from .merge import GateSource, merge_splits
from .online_softmax import LOG2_E, as_rows
from .page_rows import holds_fp8
from .paged_tiles import attend_pages, page_tiles, tile_keys, tile_types
from .prefill_tiles import PrefillTiles
from .tile_groups import TileGroup

_WARPS = 8
_STAGES = 2


def paged_attention_prefill(
    q: Tensor,
    projected: Tensor,
    config: DeltaNetConfig,
    kv: Tensor,
    page_table: Tensor,
    tiles: PrefillTiles,
) -> Tensor:
    """Compute causal attention of all tokens of a forward. Return the gated output [T, query_heads
    * head_dim] in q's dtype.

    q: [T, query_heads, head_dim] contiguous, after norm and rotary. projected: [T, query_heads x
    (q, gate) | ...], any row stride, has the gate. kv: dense, as in page_rows.py. page_table: [B,
    pages per row] int32 on the device. tiles: the division of the rows among programs.
    """
    tokens, heads, dim = q.shape
    source = GateSource.of(projected, dim)
    keys = tile_keys(q)
    narrow = q.element_size() == 2
    common = {
        "TILE_ROWS": tiles.rows,
        "HEADS": heads,
        "GROUP": heads // config.kv_heads,
        "HEAD_DIM": dim,
        "PAGE_TOKENS": PAGE_TOKENS,
        "TILE_KEYS": keys,
        "num_warps": _WARPS if narrow else 4,
        "num_stages": _STAGES if narrow else 1,
    }
    scale = dim**-0.5 * LOG2_E.value
    groups = tiles.groups if holds_fp8(kv) and narrow else (TileGroup(tiles.tiles),)

    def launch(kernel: Any, group: TileGroup, *operands: Any) -> None:
        pages, table = _pages(kv, page_table, group, q.dtype)
        kernel[(heads, len(group.tiles), tiles.splits)](
            q,
            *page_tiles(pages, keys),
            table,
            table.stride(0),
            group.tiles,
            *operands,
            scale,
            **common,
        )

    if tiles.splits == 1:
        earlier, sums = None, None
        if tiles.context.blocks:
            earlier, sums = tiles.context.run(q, kv, page_table)
        output = q.new_empty(tokens, heads * dim)
        for group in groups:
            launch(
                _attention_prefill_kernel, group, earlier, sums, source.gate, source.stride, output
            )
        return output
    outputs = torch.empty(tiles.splits, *q.shape, dtype=torch.float32, device=q.device)
    weights = torch.empty(tiles.splits, tokens, heads, dtype=torch.float32, device=q.device)
    for group in groups:
        launch(_split_kernel, group, tokens, outputs, weights)
    return merge_splits(outputs, weights, source, q)


def _pages(
    kv: Tensor, page_table: Tensor, group: TileGroup, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return the KV pages that the group's tiles read (converted to numbers if the group says so),
    and their page table."""
    if group.places is None:
        return kv, page_table
    return turned_pages(kv, page_table, group.places, dtype), group.table


@triton.jit
def _queries(q, scales, row, head, inside, HEADS: tl.constexpr, HEAD_DIM: tl.constexpr):
    element = query_elements(scales, HEAD_DIM)
    start = q + (row.to(tl.int64) * HEADS + head)[:, None] * HEAD_DIM
    return tl.load(start + element, mask=inside[:, None], other=0.0)


@triton.jit(do_not_specialize=["page_table_stride"])
def _attention_prefill_kernel(
    q,
    kv,
    scales,
    page_table,
    page_table_stride,
    tiles,
    earlier,
    sums,
    gate,
    gate_stride,
    output,
    scale,
    TILE_ROWS: tl.constexpr,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE_TOKENS: tl.constexpr,
    TILE_KEYS: tl.constexpr,
):
    head = tl.program_id(0)
    tile = tiles + tl.program_id(1) * 5
    count = tl.load(tile + 1)
    position = tl.load(tile + 3)
    offset = tl.arange(0, TILE_ROWS)
    row = tl.load(tile) + offset
    inside = offset < count
    end = position + count
    element = head_elements(scales, HEAD_DIM)
    served = tl.load(tile + 4)
    output_row = row.to(tl.int64) * HEADS + head
    started = tl.zeros([TILE_ROWS, HEAD_DIM], tl.float32)
    largest = tl.full([TILE_ROWS], float("-inf"), tl.float32)
    total = tl.zeros([TILE_ROWS], tl.float32)
    if earlier is not None:
        # The earlier keys count as one key, with that score and with that output as its value.
        there = inside & (served > 0)
        start = earlier + output_row[:, None] * HEAD_DIM
        started = tl.load(start + element, mask=there[:, None], other=0.0).to(tl.float32)
        largest = tl.load(sums + output_row, mask=there, other=float("-inf")) * LOG2_E
        total = tl.where(there, 1.0, 0.0)
        if scales is not None:
            started, largest, total = as_rows(started, largest, total)
    result, _, total = attend_pages(
        _queries(q, scales, row, head, inside, HEADS, HEAD_DIM),
        kv,
        scales,
        page_table + tl.load(tile + 2).to(tl.int64) * page_table_stride,
        head // GROUP,
        position + offset,
        end,
        served // TILE_KEYS,
        (position + 1) // TILE_KEYS,
        (end + TILE_KEYS - 1) // TILE_KEYS,
        started,
        largest,
        total,
        scale,
        HEADS // GROUP,
        PAGE_TOKENS,
        TILE_KEYS,
    )
    start = gate + row.to(tl.int64)[:, None] * gate_stride + head * (2 * HEAD_DIM)
    opening = tl.load(start + element, mask=inside[:, None], other=0.0).to(tl.float32)
    result = result / total[:, None] * tl.sigmoid(opening)
    target = output + output_row[:, None] * HEAD_DIM + element
    tl.store(target, result.to(output.dtype.element_ty), mask=inside[:, None])


@triton.jit(do_not_specialize=["page_table_stride", "tokens"])
def _split_kernel(
    q,
    kv,
    scales,
    page_table,
    page_table_stride,
    tiles,
    tokens,
    outputs,
    weights,
    scale,
    TILE_ROWS: tl.constexpr,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE_TOKENS: tl.constexpr,
    TILE_KEYS: tl.constexpr,
):
    head = tl.program_id(0)
    tile = tiles + tl.program_id(1) * 5
    split = tl.program_id(2)
    count = tl.load(tile + 1)
    position = tl.load(tile + 3)
    offset = tl.arange(0, TILE_ROWS)
    row = tl.load(tile) + offset
    inside = offset < count
    end = position + count
    key_tiles = (end + TILE_KEYS - 1) // TILE_KEYS
    share = (key_tiles + tl.num_programs(2) - 1) // tl.num_programs(2)
    last = tl.minimum(split * share + share, key_tiles)
    result, largest, total = attend_pages(
        _queries(q, scales, row, head, inside, HEADS, HEAD_DIM),
        kv,
        scales,
        page_table + tl.load(tile + 2).to(tl.int64) * page_table_stride,
        head // GROUP,
        position + offset,
        end,
        split * share,
        tl.minimum((position + 1) // TILE_KEYS, last),
        last,
        tl.zeros([TILE_ROWS, HEAD_DIM], tl.float32),
        tl.full([TILE_ROWS], float("-inf"), tl.float32),
        tl.zeros([TILE_ROWS], tl.float32),
        scale,
        HEADS // GROUP,
        PAGE_TOKENS,
        TILE_KEYS,
    )
    element = head_elements(scales, HEAD_DIM)
    place = (split.to(tl.int64) * tokens + row) * HEADS + head
    target = outputs + place[:, None] * HEAD_DIM + element
    seen = total > 0
    divisor = tl.where(seen, total, 1.0)
    tl.store(target, result / divisor[:, None], mask=inside[:, None])
    weight = tl.where(seen, largest + tl.log2(divisor), float("-inf"))
    tl.store(weights + place, weight, mask=inside)


def compile_specs() -> list[KernelSpec]:
    """Return the specs to compile the kernels ahead of time, in the shapes of the 9B model,
    bfloat16 and float32, numbers and FP8 rows."""
    heads = {"HEADS": 16, "GROUP": 4, "HEAD_DIM": 256, "PAGE_TOKENS": 64}

    def spec(
        name: str,
        kernel: Any,
        fp32: str = "",
        narrow: bool = True,
        fp8: bool = False,
        **absent: object,
    ) -> KernelSpec:
        dtype, rows, keys = ("bf16", 128, 64) if narrow else ("fp32", 16, 16)
        types, no_scales = tile_types(dtype, keys, 256, fp8=fp8)
        return KernelSpec.of(
            name,
            kernel,
            heads | {"TILE_ROWS": rows, "TILE_KEYS": keys} | absent | no_scales,
            _WARPS if narrow else 4,
            _STAGES if narrow else 1,
            pointers=f"*{dtype}",
            fp32=fp32,
            i32="page_table tiles",
            **types,
        )

    return [
        spec("attention_prefill", _attention_prefill_kernel, earlier=None, sums=None),
        spec("attention_prefill_after_context", _attention_prefill_kernel, fp32="sums"),
        spec(
            "attention_prefill_fp32",
            _attention_prefill_kernel,
            narrow=False,
            earlier=None,
            sums=None,
        ),
        spec("attention_prefill_split", _split_kernel, fp32="outputs weights"),
        spec(
            "attention_prefill_fp8_rows",
            _attention_prefill_kernel,
            fp8=True,
            earlier=None,
            sums=None,
        ),
        spec(
            "attention_prefill_after_context_fp8_rows",
            _attention_prefill_kernel,
            fp32="sums",
            fp8=True,
        ),
        spec("attention_prefill_split_fp8_rows", _split_kernel, "outputs weights", fp8=True),
    ]
