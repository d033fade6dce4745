"""The layer that drafts tokens (published as `mtp.*`): what it keeps of every token, and its guess.

Entry j, at position j >= 1, is the layer's key and value of token j and of the model's final hidden
state of token j - 1. So it depends on tokens 0 to j, as the model's own entries do, and may stand
in a page that prompts share; what is left over is the hidden state behind the last token, which is
carried in the slot. Entry 0 is of a hidden state of zeros: it is written and never attended to.

Owns nothing; computes with the plan of the forward that it follows. Its entries need no attention
and no feed-forward, so a forward costs a product with two rows of heads more.
"""

import torch
from torch import Tensor
from torch.nn import functional

from tasuki.model.backends.base import DraftOperators
from tasuki.model.batch import Batch
from tasuki.model.weights.layers import DraftWeights
from tasuki.pycache.arena import Arena


def keep_entries(
    hidden: Tensor,
    batch: Batch,
    embedding: Tensor,
    weights: DraftWeights,
    operators: DraftOperators,
    arena: Arena,
) -> None:
    """Write the entries of the batch's tokens into their pages, and what is carried over into every
    slot that the batch writes. hidden [T, width]: after the model's final norm."""
    before = torch.cat([hidden[:1], hidden[:-1]])
    before[batch.cu_seqlens[:-1]] = arena.carry[0][batch.read_slots].to(hidden.dtype)
    mixed = mixture(batch.token_ids, before, embedding, weights, operators)
    operators.write_keys(mixed, weights, arena.kv[-1])
    carry_over(hidden, batch, arena)


def carry_over(hidden: Tensor, batch: Batch, arena: Arena) -> None:
    """Write the hidden state behind the last token into every slot that the batch writes. hidden
    [T, width]: as for keep_entries()."""
    saves = batch.saves()
    if not saves:
        return
    rows = batch.cu_seqlens[[sequence for sequence, _, _ in saves]] - 1
    rows = rows + torch.tensor([offset for _, offset, _ in saves])
    carry = arena.carry[0]
    carry[[slot for _, _, slot in saves]] = hidden[rows].to(carry.dtype)


def mixture(
    tokens: Tensor,
    before: Tensor,
    embedding: Tensor,
    weights: DraftWeights,
    operators: DraftOperators,
) -> Tensor:
    """The layer's input [T, hidden] of tokens [T] and the final hidden states before them."""
    embedded = functional.embedding(tokens, embedding)
    return operators.join(embedded, before, weights)
