"""Causal attention over pages in PyTorch: the CPU path, and the reference of the kernels.

The batch's keys and values are written first. Then each sequence reads exactly its own context.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from tasuki.model.ops.row_room import RowRoom

from .page_rows import read_pages, write_rows


@dataclass(frozen=True)
class ContextPlan:
    """Plan of attention for one sequence. Its tokens are the batch rows [start, start + length).
    pages [n] int64: ids of the pages of its `context` tokens, this forward's included. mask
    [length, context] bool: true for keys seen. None: all keys are seen, or plain causal attention
    without earlier context, or stepped. stepped: each token is a query by itself, as in successive
    forwards. A CPU's rounding of bf16 depends on the number of queries computed together."""

    start: int
    length: int
    context: int
    pages: Tensor
    mask: Tensor | None
    stepped: bool = False

    def queries(self) -> Iterator[tuple[slice, int, Tensor | None]]:
        """Yield one item for each attention call: its batch rows, the number of keys seen, and
        their mask. Without a mask, all are seen. A stepped sequence has a call for each token."""
        if not self.stepped:
            yield slice(self.start, self.start + self.length), self.context, self.mask
            return
        for token in range(self.length):
            row, seen = self.start + token, self.context - self.length + token + 1
            mask = None if self.mask is None else self.mask[token : token + 1, :seen]
            yield slice(row, row + 1), seen, mask


@dataclass(frozen=True)
class AttentionPlan:
    """Plan of attention in one forward, the same for every layer.

    write_pages, write_offsets [T] int64: page id and offset in the page for each token's key and
    value.
    """

    write_pages: Tensor
    write_offsets: Tensor
    contexts: tuple[ContextPlan, ...]

    def without_first_key(self) -> "AttentionPlan":
        """Return the same plan, but no query sees the key of position 0. A query with no other key
        has no valid result."""
        contexts = []
        for item in self.contexts:
            before = item.context - item.length
            mask = torch.ones(item.length, item.context, dtype=torch.bool).tril(before)
            mask[:, 0] = False
            contexts.append(replace(item, mask=mask))
        return replace(self, contexts=tuple(contexts))


def plan_attention(
    lengths: Sequence[int],
    context_lens: Sequence[int],
    page_table: Tensor,
    positions: Tensor,
    page_tokens: int,
    stepped: Collection[int] = (),
) -> AttentionPlan:
    """Return the plan of attention for a forward. lengths: tokens of each sequence in it;
    context_lens: tokens of each sequence before it; page_table [B, pages]: page ids; positions [T]:
    position of each token. stepped: indices of the sequences with an answer's tokens, verified
    together."""
    device = page_table.device
    owner = torch.repeat_interleave(
        torch.arange(len(lengths), device=device), torch.tensor(lengths, device=device)
    )
    contexts = []
    start = 0
    for sequence, (length, before) in enumerate(zip(lengths, context_lens, strict=True)):
        context = before + length
        mask, by_token = None, sequence in stepped
        if before and length > 1 and not by_token:
            mask = torch.ones(length, context, dtype=torch.bool, device=device).tril(before)
        pages = page_table[sequence, : -(-context // page_tokens)]
        contexts.append(ContextPlan(start, length, context, pages, mask, by_token))
        start += length
    return AttentionPlan(
        write_pages=page_table[owner, positions // page_tokens],
        write_offsets=positions % page_tokens,
        contexts=tuple(contexts),
    )


def paged_attention(
    q: Tensor, k: Tensor, v: Tensor, kv: Tensor, plan: AttentionPlan, room: RowRoom
) -> Tensor:
    """Write k and v into the pages kv, then compute attention over the pages. Return [T,
    query_heads, head_dim] in q's dtype.

    q: [T, query_heads, head_dim]. k, v: [T, kv_heads, head_dim]. All three are after norm and
    rotary. kv: as in page_rows.py. room: memory for the gathered KV of one sequence at a time.
    """
    write_pages(k, v, kv, plan)
    output = torch.empty_like(q)
    for context in plan.contexts:
        keys, values = read_pages(kv, context.pages, q.dtype, room)
        for rows, seen, mask in context.queries():
            output[rows] = _attend(q[rows], keys[:, :seen], values[:, :seen], mask)
    return output


def write_pages(k: Tensor, v: Tensor, kv: Tensor, plan: AttentionPlan) -> None:
    """Write keys and values of the batch's tokens into the pages kv, see paged_attention()."""
    write_rows(k, v, kv, (plan.write_pages, plan.write_offsets))


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Compute attention of q [t, query_heads, d] over k, v [kv_heads, context, d]. Return [t,
    query_heads, d]."""
    tokens, heads, dim = q.shape
    kv_heads = k.shape[0]
    group = heads // kv_heads
    grouped = q.view(tokens, kv_heads, group, dim).permute(1, 2, 0, 3)
    keys, values = k[:, None], v[:, None]
    if tokens == 1 and mask is None:
        # Heads with a common key become its queries. Nothing is repeated and nothing masked.
        together = grouped.transpose(1, 2)
        return functional.scaled_dot_product_attention(together, keys, values).reshape(q.shape)
    output = functional.scaled_dot_product_attention(
        grouped,
        keys.expand(-1, group, -1, -1),
        values.expand(-1, group, -1, -1),
        attn_mask=mask,
        is_causal=mask is None,
    )
    return output.permute(2, 0, 1, 3).reshape(q.shape)


def naive_attention(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Compute `DenseAttention` of long_context.py step by step. Return (output like q, log of the
    sum of exponentials [rows, query_heads] float32).

    q [rows, query_heads, dim]; k, v [keys, kv_heads, dim]; nothing is masked.
    """
    group = q.shape[1] // k.shape[1]
    keys, values = (x.float().repeat_interleave(group, dim=1).transpose(0, 1) for x in (k, v))
    scores = q.float().transpose(0, 1) @ keys.transpose(1, 2) * q.shape[-1] ** -0.5
    output = scores.softmax(dim=-1) @ values
    return output.transpose(0, 1).to(q.dtype), scores.logsumexp(dim=-1).transpose(0, 1)
