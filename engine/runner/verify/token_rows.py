"""Rows of several tokens as rows of one, and how many of what a step has room for. Pure."""

from dataclasses import replace

import numpy as np

from tasuki.engine.forward_plan import Ints
from tasuki.engine.runner.sequence_states import ResolvedRows

MOST_ROWS = 64
"""With drafts, of a step: with more, products take so long that drafts gain nothing."""
_WIDTHS = (2, 4, 8)


def widths(drafts: int) -> list[int]:
    """Tokens of a row for which there are graphs, where a row has at most so many drafts: a token
    too many costs its share of the products and nothing else."""
    return sorted({min(width, drafts + 1) for width in _WIDTHS} | {drafts + 1})


def token_rows(rows: ResolvedRows, width: int) -> ResolvedRows:
    """`width` rows of a token for each of the rows, in order; those past a row's length stand at
    position -1."""
    place = np.tile(np.arange(width, dtype=np.int32), len(rows))
    each = rows.take(np.repeat(np.arange(len(rows)), width))
    starts: Ints = np.where(place < each.lengths, each.starts + place, np.int32(-1))
    return replace(each, starts=starts, lengths=np.ones_like(each.lengths))
