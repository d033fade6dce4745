"""Causal attention over latent rows in pages, without rotary positions.

A token's row is [latent | shared key], and belongs to no head. A head's key is made from the latent
by its key projection, with the shared key behind it. Its value is made from the latent by its value
projection. Here a head's query is projected into the latent's space instead, and so is its output
back. Then all heads read the same rows, and no key or value of a head is stored or made. Every
query takes this one form. So the division of a prompt into forwards changes no result.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from tasuki.model.ops.attention.reference import AttentionPlan, ContextPlan
from tasuki.model.ops.row_room import Place, RowRoom

from .config import LatentShape
from .weights import LatentWeights

_SCORES = 2**22
"""Number of scores computed together: 16 MiB in float32."""


def latent_attention(
    q: Tensor,
    rows: Tensor,
    weights: LatentWeights,
    shape: LatentShape,
    pages: Tensor,
    plan: AttentionPlan,
    room: RowRoom,
) -> Tensor:
    """Write the tokens' rows into the pages, then compute attention over the pages. Return [T,
    heads, value_dim] in q's dtype.

    q: [T, heads, key_dim + shared_dim]. rows: [T, rank + shared_dim], the latent after its norm.
    pages: [page ids, page_tokens, rank + shared_dim]. room: memory for the gathered rows of one
    sequence at a time.
    """
    pages.index_put_((plan.write_pages, plan.write_offsets), rows.to(pages.dtype))
    own, shared = q.transpose(0, 1).split_with_sizes([shape.key_dim, shape.shared_dim], dim=-1)
    # [heads, T, rank + shared_dim]: queries of the rows as they are cached.
    scale: float = shape.query_dim**-0.5
    queries = torch.cat([own @ weights.key_proj, shared], dim=-1) * scale
    mixed = queries.new_empty(*queries.shape[:2], shape.rank)
    for context in plan.contexts:
        seen = read_rows(pages, context, q.dtype, room)
        for part, last in _parts(context, shape.heads):
            mixed[:, part] = _attend(queries[:, part], seen[:last], shape.rank)
    return (mixed @ weights.value_proj).transpose(0, 1)


def read_rows(pages: Tensor, context: ContextPlan, dtype: torch.dtype, room: RowRoom) -> Tensor:
    """Return the rows [page_tokens * n, width] of a sequence's n pages as `dtype`. They are valid
    until the next read into `room`."""
    width = pages.shape[2]
    stored = pages.flatten(1)
    count = len(context.pages)
    rows = room.rows(Place.STORED_KEYS, count, stored.shape[1], pages.dtype, pages.device)
    torch.index_select(stored, 0, context.pages, out=rows)
    if pages.dtype != dtype:
        rows = room.rows(Place.KEYS, count, stored.shape[1], dtype, pages.device).copy_(rows)
    return rows.view(-1, width)


def _parts(context: ContextPlan, heads: int) -> Iterator[tuple[slice, int]]:
    """Yield the queries computed together, as their batch rows, and the number of rows seen by the
    last of them. A stepped sequence's queries are computed one by one, as in decode steps."""
    each = 1 if context.stepped else max(_SCORES // (heads * context.context), 1)
    before = context.context - context.length
    for begin in range(0, context.length, each):
        end = min(begin + each, context.length)
        yield slice(context.start + begin, context.start + end), before + end


def _attend(q: Tensor, rows: Tensor, rank: int) -> Tensor:
    """Return the mixed latents [heads, t, rank] of queries q [heads, t, width] over rows [n,
    width]. The last query sees all rows, each query before it one row less. q is scaled."""
    heads, tokens, width = q.shape
    scores = (q.reshape(-1, width) @ rows.t()).float().view(heads, tokens, -1)
    hidden = torch.ones(tokens, len(rows), dtype=torch.bool, device=q.device)
    scores.masked_fill_(hidden.triu_(len(rows) - tokens + 1), -torch.inf)
    shares = scores.softmax(dim=-1).to(q.dtype).flatten(0, 1)
    return (shares @ rows[:, :rank]).view(heads, tokens, rank)
