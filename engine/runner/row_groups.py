"""Rows of a step that share first pages: their plan for attention, kept between steps."""

from collections.abc import Sequence
from operator import is_

import numpy as np

from tasuki.engine.forward_plan import Ints
from tasuki.model.ops.attention.spans.groups import SpanGroups

from .rows import ResolvedRows, SequencePages


class RowGroups:
    """The groups of the rows in a block table. A step plans anew only if its sequences changed, or
    the length of a row's spans. In all other steps rows have the same first pages, and the kernel
    finds a row's later spans itself.

    Owns the sequences of the last plan. Thread rule and copies: as in DeviceBatch.
    """

    def __init__(self, groups: SpanGroups) -> None:
        """groups: memory for the plan, read by captured graphs."""
        self._groups = groups
        self._seated: list[SequencePages] = []
        self._sizes: Ints = np.empty(0, dtype=np.int32)

    def seat(self, sequences: Sequence[SequencePages], rows: ResolvedRows) -> None:
        """Put the plan of a step's rows, for later work in the stream. sequences: the sequence of
        each row."""
        sizes = self._groups.rule.pages(rows.stops)
        if (
            len(sequences) == len(self._seated)
            and all(map(is_, sequences, self._seated))
            and np.array_equal(sizes, self._sizes)
        ):
            return
        # Keep references, not only the id(): an id() may return once its object is gone.
        self._seated, self._sizes = list(sequences), sizes
        self._groups.plan([pages.ids for pages in sequences], rows.stops, rows.starts + 1)
