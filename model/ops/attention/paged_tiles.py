"""Tiles of KV pages for attention kernels, loaded by the tensor copy engine (TMA).

A tile is some tokens of one page and one head, keys or values, side by side. Kernels take
`PageTiles` apart into two arguments. For numbers: a matrix of rows [page][head][key, value][token]
by [dim], and None. For FP8 rows: the codes [page, head][key, value, token][dim], and a matrix of
heads by bytes with a head's scales at its end.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from tasuki.pycache.layout import PAGE_TOKENS as _PAGE_TOKENS
from tasuki.utils.triton.fp8_rows import largest_bits, row_factor

from .code_columns import key_numbers, value_numbers
from .online_softmax import FEW_QUERIES, take_in, take_in_rows
from .page_rows import holds_fp8

PageTiles = tuple[TensorDescriptor, TensorDescriptor | None]


def tile_keys(q: Tensor) -> int:
    """Return the number of tokens in a tile: a whole page in 16-bit types, else as many as fit in
    registers."""
    return _PAGE_TOKENS if q.element_size() == 2 else 16


def page_tiles(kv: Tensor, tile: int) -> PageTiles:
    """Return two descriptors for a kernel: of tiles of `tile` tokens of kv, and of their scales.
    The second is None for plain numbers. kv: as in page_rows.py. Raises ValueError unless kv is
    dense."""
    if not kv.is_contiguous():
        raise ValueError(f"kv has strides {kv.stride()}: pages must be dense, as arena views are")
    if not holds_fp8(kv):
        pages, heads, kinds, tokens, dim = kv.shape
        return TensorDescriptor(
            kv, [pages * heads * kinds * tokens, dim], [dim, 1], [tile, dim]
        ), None
    pages, heads, size = kv.shape
    rows = 2 * _PAGE_TOKENS
    dim = size // rows - 1
    words = kv.view(torch.int32)
    codes = TensorDescriptor(
        words, [pages * heads, rows, dim // 4], [size // 4, dim // 4, 1], [1, tile, dim // 4]
    )
    # Both sides' scales at once: the copy engine fills places of whole 128 bytes.
    return codes, TensorDescriptor(kv, [pages * heads, size], [size, 1], [1, rows])


def tile_types(
    dtype: str, tile: int, dim: int, *, fp8: bool
) -> tuple[dict[str, str], dict[str, object]]:
    """Return the Triton types of a kernel's arguments `kv` and `scales`, for its compile spec. An
    absent argument becomes a constant."""
    if not fp8:
        return {"kv": f"tensordesc<{dtype}[{tile},{dim}]>"}, {"scales": None}
    return {
        "kv": f"tensordesc<i32[1,{tile},{dim // 4}]>",
        "scales": f"tensordesc<u8[1,{2 * _PAGE_TOKENS}]>",
    }, {}


@triton.jit
def exact_queries(queries, scale, scales):
    """Return (queries, scale) in the form for `attend_tile`. For FP8 keys, bfloat16 queries become
    float16; all others are unchanged. A power of two per row moves them into float16's range
    exactly, and scale [M, 1] reverses this. float16 products are as fast as bfloat16."""
    if scales is not None and queries.dtype == tl.bfloat16:
        numbers = queries.to(tl.float32)
        # Scale to 2^14 at most, so the remainder left to smaller numbers is 2^-38 of it.
        exponent = tl.minimum(tl.maximum(largest_bits(numbers) >> 23, 15), 253)
        there = ((268 - exponent) << 23).to(tl.float32, bitcast=True)
        back = ((exponent - 14) << 23).to(tl.float32, bitcast=True)
        return (numbers * there[:, None]).to(tl.float16), scale * back[:, None]
    else:
        return queries, scale


@triton.jit
def _seen(tile, positions, end, TILE: tl.constexpr, FIRST_KEY: tl.constexpr):
    """Return two masks of a tile: the existing keys [TILE], and the scores of keys seen by each
    query [M or 1, TILE]."""
    keys = tile * TILE + tl.arange(0, TILE)
    written = keys < end
    if FIRST_KEY > 0:
        written = written & (keys >= FIRST_KEY)
    if positions is None:
        visible = written[None, :]
    else:
        visible = (keys[None, :] <= positions[:, None]) & written[None, :]
    return written, visible


@triton.jit
def _row(table, row):
    """Return one row of the int32 table [ROWS, COLUMNS], without negative numbers."""
    rows = tl.arange(0, table.shape[0])
    return tl.max(tl.where(rows[:, None] == row, table, 0), 0)


@triton.jit
def attend_tile(
    queries,
    kv,
    scales,
    table,
    kv_head,
    tile,
    positions,
    end,
    output,
    largest,
    total,
    scale,
    KV_HEADS: tl.constexpr,
    PAGE_TOKENS: tl.constexpr,
    TILE: tl.constexpr,
    FIRST_KEY: tl.constexpr = 0,
):
    """Add attention of queries [M, D] to one tile of TILE keys. Take and return output [M, D],
    largest score and total [M].

    table: page ids of the sequence. end: position of the first key not written yet; None: all keys
    exist. positions [M]: position of each query, and the last key it sees; None: it sees all. No
    query sees keys before FIRST_KEY.
    """
    tiles_a_page: tl.constexpr = PAGE_TOKENS // TILE
    head = tl.load(table + tile // tiles_a_page) * KV_HEADS + kv_head
    token = tile % tiles_a_page * TILE
    if scales is None:
        row = head * (2 * PAGE_TOKENS) + token
        key = kv.load([row, 0])
        value = kv.load([row + PAGE_TOKENS, 0])
        scores = tl.dot(queries, tl.trans(key), input_precision="ieee") * scale
        if end is not None:
            written, visible = _seen(tile, positions, end, TILE, FIRST_KEY)
            scores = tl.where(visible, scores, float("-inf"))
            value = tl.where(written[:, None], value, 0.0)
        return take_in(scores, value, output, largest, total)
    else:
        dim: tl.constexpr = queries.shape[1]
        key = kv.load([head, token, 0]).reshape([TILE, dim // 4])
        both = scales.load([head, 2 * PAGE_TOKENS * dim])
        both = both.reshape([2 * tiles_a_page, TILE]).to(tl.int32)
        key_scale = _row(both, tile % tiles_a_page)
        value_scale = _row(both, tiles_a_page + tile % tiles_a_page)
        key = key_numbers(key, queries.dtype)
        if queries.shape[0] <= FEW_QUERIES:
            scores = tl.trans(tl.dot(key, tl.trans(queries), input_precision="ieee"))
        else:
            scores = tl.dot(queries, tl.trans(key), input_precision="ieee")
        scores = scores * (scale * row_factor(key_scale)[None, :])
        value = kv.load([head, PAGE_TOKENS + token, 0]).reshape([TILE, dim // 4])
        if end is not None:
            written, visible = _seen(tile, positions, end, TILE, FIRST_KEY)
            scores = tl.where(visible, scores, float("-inf"))
            value = tl.where(written[:, None], value, 0)
            value_scale = tl.where(written, value_scale, 127)
        value = value_numbers(value, queries.dtype)
        return take_in_rows(scores, value, value_scale, output, largest, total)


@triton.jit
def attend_whole(
    queries,
    kv,
    scales,
    table,
    kv_head,
    first,
    full,
    output,
    largest,
    total,
    scale,
    KV_HEADS: tl.constexpr,
    PAGE_TOKENS: tl.constexpr,
    TILE: tl.constexpr,
):
    """Add attention to the tiles [first, full), seen whole by every query; otherwise like
    attend_tile()."""
    for tile in range(first, full):
        output, largest, total = attend_tile(
            queries, kv, scales, table, kv_head, tile, None, None, output, largest, total, scale,
            KV_HEADS, PAGE_TOKENS, TILE,
        )  # fmt: skip
    return output, largest, total


@triton.jit
def attend_pages(
    queries,
    kv,
    scales,
    table,
    kv_head,
    positions,
    end,
    first,
    full,
    last,
    output,
    largest,
    total,
    scale,
    KV_HEADS: tl.constexpr,
    PAGE_TOKENS: tl.constexpr,
    TILE: tl.constexpr,
    FIRST_KEY: tl.constexpr = 0,
):
    """Add attention to all tiles [first, last) of a sequence, with queries as loaded; otherwise
    like attend_tile(). Every query sees the tiles [first, full) whole. In the tiles [full, last) it
    sees keys up to its own position (`positions` [M]) and before `end`. No key before FIRST_KEY is
    seen."""
    queries, scale = exact_queries(queries, scale, scales)
    output, largest, total = attend_whole(
        queries, kv, scales, table, kv_head, first, full, output, largest, total, scale,
        KV_HEADS, PAGE_TOKENS, TILE,
    )  # fmt: skip
    for tile in range(tl.maximum(first, full), last):
        output, largest, total = attend_tile(
            queries, kv, scales, table, kv_head, tile, positions, end, output, largest, total,
            scale, KV_HEADS, PAGE_TOKENS, TILE, FIRST_KEY,
        )  # fmt: skip
    return output, largest, total
