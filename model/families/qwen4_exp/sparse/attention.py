"""Sparse attention over pages in PyTorch.

Keys, values and index rows of a forward are written first. A query then sees the tokens of the
blocks that it chose, and the tokens behind the last whole block. A short context is seen whole.
"""

import torch
from torch import Tensor
from torch.nn import functional

from tasuki.model.families.qwen4_exp.sparse.choice import (
    Extent,
    best_blocks,
    block_scores,
    read_index,
)
from tasuki.model.families.qwen4_exp.sparse.plan import IndexPlan, SeenContext
from tasuki.model.ops.attention.page_rows import holds_fp8, read_pages
from tasuki.model.ops.row_room import RowRoom
from tasuki.pycache.layout import PAGE_TOKENS


def sparse_attention(
    q: Tensor, index_q: Tensor, kv: Tensor, index: Tensor, plan: IndexPlan, room: RowRoom
) -> Tensor:
    """Return attention over the pages, [T, query_heads, head_dim] in q's dtype.

    q [T, query_heads, head_dim] and index_q [T, index heads, dim], both after norm and rotary. kv:
    as in page_rows.py. index [pages, rows, dim]. A query with nothing to see gets zeros. room:
    memory for the gathered KV of one sequence at a time.
    """
    output = torch.zeros_like(q)
    for context in plan.contexts:
        if context.stepped or context.length == 1:
            for token in range(context.length):
                row, tokens = context.start + token, context.before + token + 1
                seen = _seen_by_one(index_q[row : row + 1], index, context, plan.extent, tokens)
                if len(seen):
                    keys, values = _read_tokens(kv, context.pages, seen, q.dtype, room)
                    output[row] = _attend(q[row : row + 1], keys, values, None)[0]
            continue
        rows = slice(context.start, context.start + context.length)
        mask = seen_tokens(index_q[rows], index, context, plan.extent)
        keys, values = read_pages(kv, context.pages, q.dtype, room)
        found = _attend(q[rows], keys[:, : context.tokens], values[:, : context.tokens], mask)
        output[rows] = found.masked_fill(~mask.any(dim=1)[:, None, None], 0)
    return output


def seen_tokens(index_q: Tensor, index: Tensor, context: SeenContext, extent: Extent) -> Tensor:
    """Return bool [length, tokens]: the tokens that each query of a sequence sees. index_q [length,
    heads, dim]."""
    positions = torch.arange(context.before, context.tokens)
    places = torch.arange(context.tokens)
    mask = (places <= positions[:, None]) & (places >= extent.first)
    if _is_dense(extent, context.tokens):
        return mask
    visible = (positions + 1 - extent.first).clamp_min(0) // extent.ratio
    blocks = int(visible[-1])
    scores = block_scores(index_q, read_index(index, context.pages, extent, blocks))
    chosen = best_blocks(scores, visible, extent.chosen)
    ends = extent.first + extent.ratio * visible[:, None]
    whole = slice(extent.first, extent.first + extent.ratio * blocks)
    of_blocks = chosen.repeat_interleave(extent.ratio, dim=1)
    mask[:, whole] &= of_blocks | (places[whole] >= ends)
    return mask


def _is_dense(extent: Extent, tokens: int) -> bool:
    """Return true if a query after `tokens` positions sees all of its context."""
    return extent.whole_blocks(tokens) <= extent.chosen


def _seen_by_one(
    index_q: Tensor, index: Tensor, context: SeenContext, extent: Extent, tokens: int
) -> Tensor:
    """Return the positions seen by the last of `tokens` tokens, ascending. index_q [1, heads,
    dim]."""
    if _is_dense(extent, tokens):
        return torch.arange(extent.first, tokens)
    blocks = extent.whole_blocks(tokens)
    scores = block_scores(index_q, read_index(index, context.pages, extent, blocks))
    chosen = best_blocks(scores, torch.tensor([blocks]), extent.chosen)[0].nonzero()[:, 0]
    begins = extent.first + extent.ratio * chosen
    of_blocks = (begins[:, None] + torch.arange(extent.ratio)).flatten()
    return torch.cat([of_blocks, torch.arange(extent.first + extent.ratio * blocks, tokens)])


def _read_tokens(
    kv: Tensor, pages: Tensor, seen: Tensor, dtype: torch.dtype, room: RowRoom
) -> tuple[Tensor, Tensor]:
    """Return keys and values, each [kv_heads, n, head_dim], of a sequence's tokens at the positions
    seen [n]."""
    if holds_fp8(kv):
        # Rows are decoded by page: read each page that has a seen token once.
        numbers = seen // PAGE_TOKENS
        used = torch.tensor(sorted({*numbers.tolist()}))
        keys, values = read_pages(kv, pages[used], dtype, room)
        rows = torch.searchsorted(used, numbers) * PAGE_TOKENS + seen % PAGE_TOKENS
        return keys[:, rows], values[:, rows]
    found = kv.transpose(1, 3)[pages[seen // PAGE_TOKENS], seen % PAGE_TOKENS]
    keys, values = found.to(dtype).permute(1, 2, 0, 3)
    return keys, values


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Return attention of q [t, query_heads, d] over k, v [kv_heads, n, d], like q. mask [t, n]
    bool: true for keys seen; None: all are seen."""
    tokens, heads, dim = q.shape
    grouped = q.view(tokens, k.shape[0], -1, dim).permute(1, 2, 0, 3)
    keys, values = (x[:, None].expand(-1, grouped.shape[1], -1, -1) for x in (k, v))
    output = functional.scaled_dot_product_attention(grouped, keys, values, attn_mask=mask)
    return output.permute(2, 0, 1, 3).reshape(tokens, heads, dim)
