"""Pages as attention kernels read them: tiles of a matrix, by the tensor copy engine.

The kv view of a layer is one matrix of rows [page][key, value][token] by [head][dim]; a tile is
some tokens of one page and one head.
"""

import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from .online_softmax import attend, attend_visible


def page_matrix(kv: Tensor, tile: int) -> TensorDescriptor:
    """kv [pages, 2, page_tokens, kv_heads, head_dim], dense, as a matrix read by [tile, head_dim]:
    token t of the keys (0) or values (1) of page p is row (2 p + 0 or 1) * page_tokens + t."""
    pages, kinds, tokens, heads, dim = kv.shape
    if not kv.is_contiguous():
        raise ValueError(f"kv has strides {kv.stride()}: pages must be dense, as arena views are")
    width = heads * dim
    return TensorDescriptor(kv, [pages * kinds * tokens, width], [width, 1], [tile, dim])


@triton.jit
def attend_pages(
    queries,
    kv,
    table,
    column,
    positions,
    end,
    first,
    full,
    last,
    output,
    largest,
    total,
    scale,
    HEAD_DIM: tl.constexpr,
    PAGE_TOKENS: tl.constexpr,
    TILE_KEYS: tl.constexpr,
):
    """Key tiles [first, full) are seen by every row, [full, last) up to positions [TILE_ROWS] and
    `end`; they join output [TILE_ROWS, HEAD_DIM], largest score and sum of exponentials."""
    tiles_a_page: tl.constexpr = PAGE_TOKENS // TILE_KEYS
    for tile in range(first, full):
        page = tl.load(table + tile // tiles_a_page)
        row = page * (2 * PAGE_TOKENS) + tile % tiles_a_page * TILE_KEYS
        key = kv.load([row, column])
        value = kv.load([row + PAGE_TOKENS, column])
        output, largest, total = attend(queries, key, value, output, largest, total, scale)
    for tile in range(tl.maximum(first, full), last):
        page = tl.load(table + tile // tiles_a_page)
        row = page * (2 * PAGE_TOKENS) + tile % tiles_a_page * TILE_KEYS
        key = kv.load([row, column])
        value = kv.load([row + PAGE_TOKENS, column])
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
