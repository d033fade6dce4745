"""The division of a row's keys into spans, a function of the row's own length.

A span is a run of whole pages that begins at a multiple of its length. Its length does not depend
on other rows of a batch. So a row's partial results, and their order, are the same in every batch.
"""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tasuki.pycache.layout import PAGE_TOKENS

Ints: TypeAlias = NDArray[np.int32]


@dataclass(frozen=True)
class SpanRule:
    """Lengths of spans. least_pages: pages of a span of any row with up to least_pages * most_spans
    pages. Longer rows have longer spans, so that no row has more than most_spans."""

    least_pages: int
    most_spans: int

    def pages(self, lengths: Ints) -> Ints:
        """Return the number of pages in a span of each row. lengths: keys of each row."""
        return np.maximum(-(-_pages(lengths) // self.most_spans), self.least_pages)

    def whole(self, lengths: Ints, seen: Ints) -> Ints:
        """Return the number of first spans of each row with all keys seen by all of its queries.
        seen: number of keys seen by each row's first query."""
        return seen // (self.pages(lengths) * PAGE_TOKENS)


def _pages(lengths: Ints) -> Ints:
    return -(-lengths // PAGE_TOKENS)


SPANS = SpanRule(least_pages=12, most_spans=66)
"""The rule of every launch. With four key heads, 66 spans give every program of an H200 one part of
a long row. Shorter spans cost more partial results and more starts than they gain in balance."""
