"""The index of a sparse layer: which blocks a forward completes, and what each query may see.

Pure, but for write(). A plan is the same for every sparse layer of a forward.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tasuki.model.families.qwen4_exp.sparse.choice import Extent, pooled_keys
from tasuki.model.families.qwen4_exp.states import WindowPlan
from tasuki.model.ops.attention.rope import RotaryAngles
from tasuki.pycache.layout import PAGE_TOKENS


@dataclass(frozen=True)
class SeenContext:
    """What the queries of one sequence may see. Its tokens are the batch rows [start, start +
    length), at positions from `before` on. pages [n] int64: ids of the pages of all its tokens.
    stepped: each token is a query by itself, as in successive forwards."""

    start: int
    length: int
    before: int
    pages: Tensor
    stepped: bool

    @property
    def tokens(self) -> int:
        """Return the length of the sequence after this forward."""
        return self.before + self.length


@dataclass(frozen=True)
class IndexPlan:
    """Index rows written by a forward, and the contexts of its sequences.

    members [N, ratio] int64: extended rows of the raw keys of each completed block, see WindowPlan.
    pages, rows [N] int64: where the block's key goes. cos, sin [N, 1, rotary_dim / 2] float32:
    angles of the block's first position. window: plan of the raw keys' window.
    """

    extent: Extent
    members: Tensor
    pages: Tensor
    rows: Tensor
    cos: Tensor
    sin: Tensor
    window: WindowPlan
    contexts: tuple[SeenContext, ...]

    @staticmethod
    def of(
        extent: Extent,
        lengths: Sequence[int],
        befores: Sequence[int],
        page_table: Tensor,
        window: WindowPlan,
        angles: RotaryAngles,
        stepped: Collection[int] = (),
    ) -> "IndexPlan":
        """Return the plan of a forward. lengths, befores: tokens of each sequence in it and before
        it. page_table [B, pages]: page ids. window: of `ratio` - 1 columns. stepped: indices of the
        sequences with an answer's tokens."""
        members: list[int] = []
        places: list[tuple[int, int]] = []
        begins: list[int] = []
        contexts = []
        start = 0
        for sequence, (length, before) in enumerate(zip(lengths, befores, strict=True)):
            # The extended row of position p is p + shift.
            shift = int(window.firsts[sequence]) - before
            blocks = range(extent.whole_blocks(before), extent.whole_blocks(before + length))
            for block in blocks:
                begin, row = extent.first + extent.ratio * block, extent.row(block)
                members.append(begin + shift)
                begins.append(begin)
                page = int(page_table[sequence, row // extent.page_rows])
                places.append((page, row % extent.page_rows))
            pages = page_table[sequence, : -(-(before + length) // PAGE_TOKENS)]
            contexts.append(SeenContext(start, length, before, pages, sequence in stepped))
            start += length
        pages, rows = torch.tensor(places, dtype=torch.int64).view(-1, 2).unbind(1)
        cos, sin = angles.table(torch.tensor(begins, dtype=torch.int64))
        of_block = torch.tensor(members, dtype=torch.int64)[:, None] + torch.arange(extent.ratio)
        return IndexPlan(extent, of_block, pages, rows, cos, sin, window, tuple(contexts))

    def write(self, extended: Tensor, norm: Tensor, eps: float, index: Tensor) -> None:
        """Write the keys of all blocks that this forward completes. extended: raw keys with each
        sequence's window before them, see WindowPlan. norm [dim] float32: 1 + w. index [pages,
        rows, dim]: the layer's index rows."""
        pooled = pooled_keys(extended[self.members], norm, eps, self.cos, self.sin)
        index[self.pages, self.rows] = pooled.to(index.dtype)
