"""Pages as attention kernels read them: tiles of a matrix, by the tensor copy engine.

The kv view of a layer is one matrix of rows [page][head][key, value][token] by [dim]; a tile is
some tokens of one page and one head, which lie side by side.
"""

import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from .online_softmax import attend, attend_visible


def page_matrix(kv: Tensor, tile: int) -> TensorDescriptor:
    """kv [pages, kv_heads, 2, page_tokens, head_dim], dense, as a matrix read by [tile, head_dim]:
    token t of the keys (0) or values (1) of head h of page p is row
    ((p * kv_heads + h) * 2 + 0 or 1) * page_tokens + t."""
    pages, heads, kinds, tokens, dim = kv.shape
    if not kv.is_contiguous():
        raise ValueError(f"kv has strides {kv.stride()}: pages must be dense, as arena views are")
    return TensorDescriptor(kv, [pages * heads * kinds * tokens, dim], [dim, 1], [tile, dim])


@triton.jit
def attend_pages(
    queries,
    kv,
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
    TILE_KEYS: tl.constexpr,
):
    """Key tiles [first, full) are seen by every row, [full, last) up to positions [TILE_ROWS] and
    `end`; they join output [TILE_ROWS, head_dim], largest score and sum of exponentials."""
    tiles_a_page: tl.constexpr = PAGE_TOKENS // TILE_KEYS
    for tile in range(first, full):
        page = tl.load(table + tile // tiles_a_page)
        row = (page * KV_HEADS + kv_head) * (2 * PAGE_TOKENS) + tile % tiles_a_page * TILE_KEYS
        key = kv.load([row, 0])
        value = kv.load([row + PAGE_TOKENS, 0])
        output, largest, total = attend(queries, key, value, output, largest, total, scale)
    for tile in range(tl.maximum(first, full), last):
        page = tl.load(table + tile // tiles_a_page)
        row = (page * KV_HEADS + kv_head) * (2 * PAGE_TOKENS) + tile % tiles_a_page * TILE_KEYS
        key = kv.load([row, 0])
        value = kv.load([row + PAGE_TOKENS, 0])
        keys = tile * TILE_KEYS + tl.arange(0, TILE_KEYS)
        output, largest, total = attend_visible(
            queries,
            key,
            value,
            keys[None, :] <= positions[:, None],
            keys < end,
            output,
            largest,
            total,
            scale,
        )
    return output, largest, total
