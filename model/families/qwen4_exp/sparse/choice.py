"""The choice of blocks: pooled index keys, scores, and the best blocks of each query.

A block is `ratio` neighbouring tokens, counted from the sequence's first entry. Its key is stored
in the page of its last token, in the row of the same block of the page. So a page's rows depend on
nothing behind the page. Entries begin at position 0 in the model's layers, and at 1 in the draft
layer, where entry 0 is never attended to.

Ties are common: a score is a sum of ReLUs, and exactly 0 where no head agrees. Among equal scores
the lower block wins. Sums are in float64 and then rounded to float32. So a score has the same bits
however many queries and blocks are scored together, on every rank.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tasuki.model.ops.attention.rope import apply_rotary
from tasuki.model.ops.norm.reference import rms_norm
from tasuki.pycache.layout import PAGE_TOKENS


@dataclass(frozen=True)
class Extent:
    """The entries of a layer. first: position of the first entry that queries see. ratio: entries
    of a block. chosen: most blocks attended to."""

    first: int
    ratio: int
    chosen: int

    @property
    def page_rows(self) -> int:
        """Return the number of index rows in a page."""
        return PAGE_TOKENS // self.ratio

    def whole_blocks(self, tokens: int) -> int:
        """Return the number of blocks that are whole after `tokens` positions."""
        return max(tokens - self.first, 0) // self.ratio

    def row(self, block: int) -> int:
        """Return a block's index row, counted from the first page."""
        return (self.first + self.ratio * (block + 1) - 1) // self.ratio


def pooled_keys(members: Tensor, norm: Tensor, eps: float, cos: Tensor, sin: Tensor) -> Tensor:
    """Return the key of each block, [N, dim] in the dtype of members [N, ratio, dim]: the mean of
    its raw keys in float32, rounded, normed and rotated at the block's first position."""
    pooled = members.float().mean(dim=1).to(members.dtype)
    return apply_rotary(rms_norm(pooled, norm, eps)[:, None], cos, sin)[:, 0]


def read_index(index: Tensor, pages: Tensor, extent: Extent, blocks: int) -> Tensor:
    """Return the keys [blocks, dim] of a sequence's first blocks. index [pages, rows, dim]; pages
    [n]: the sequence's page ids."""
    first = extent.row(0)
    needed = -(-(first + blocks) // extent.page_rows)
    return index.index_select(0, pages[:needed]).flatten(0, 1)[first : first + blocks]


def block_scores(queries: Tensor, keys: Tensor) -> Tensor:
    """Return the score of each block for each query, [T, blocks] float32: the sum over heads of
    relu(q . key) / sqrt(dim). queries [T, heads, dim]; keys [blocks, dim]."""
    agreeing = queries.new_zeros(len(queries), len(keys), dtype=torch.float64)
    columns = keys.double().T
    for head in queries.double().unbind(1):
        # A product that is 0 or below in float32 too adds exactly 0.
        agreeing += (head @ columns).float().relu_()
    return (agreeing / math.sqrt(queries.shape[-1])).float()


def best_blocks(scores: Tensor, visible: Tensor, count: int) -> Tensor:
    """Return bool [T, blocks]: the `count` best blocks of each query, or all visible ones if there
    are no more. Order: score down, then block number up. scores [T, blocks] float32; visible [T]
    int64: number of whole blocks before each query."""
    blocks = scores.shape[1]
    seen = torch.arange(blocks) < visible[:, None]
    if blocks <= count:
        return seen
    scores = torch.where(seen, scores, -torch.inf)
    last = scores.topk(count, dim=1, sorted=True).values[:, -1:]
    better, equal = scores > last, scores == last
    left = count - better.sum(dim=1, keepdim=True)
    return (better | (equal & (equal.cumsum(dim=1) <= left))) & seen
