"""Rows of a batch that share first pages, as groups for attention: the plan of a step.

Rows lie side by side in an order in which equal page tables are neighbours. In each span, a run of
neighbours with equal pages is attended together, a few rows at a time, while every one of their
queries sees the span whole. Later spans are each row's own. The kernel finds own spans from lengths
on the device. So a plan stays valid while rows grow, until a row's spans change their length.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tasuki.pycache.layout import PAGE_TOKENS

from .rule import Ints, SpanRule

_PLACE, _ROWS, _SPAN = range(3)
_FIELDS = 3


@dataclass(frozen=True)
class GroupPlan:
    """The groups of one step.

    order: [n] the row at each place. covered: [n] number of first spans attended in groups, of the
    row at each place. units: [m, 3] place of the first row, number of rows, span. Units of equal
    spans follow each other, so their reads of pages meet in the cache.
    """

    order: Ints
    covered: Ints
    units: Ints

    @staticmethod
    def alone(rows: int) -> "GroupPlan":
        """Return the plan of rows without common spans."""
        none = np.zeros(rows, dtype=np.int32)
        return GroupPlan(np.arange(rows, dtype=np.int32), none, np.empty((0, _FIELDS), np.int32))

    @staticmethod
    def of(
        pages: Sequence[Ints], lengths: Ints, seen: Ints, rule: SpanRule, most_rows: int
    ) -> "GroupPlan":
        """Find the groups. pages: page ids of each row. lengths: keys of each row. seen: keys seen
        by each row's first query. most_rows: most rows of a unit."""
        rows = len(pages)
        if rows < 2 or most_rows < 2:
            return GroupPlan.alone(rows)
        sizes, whole = rule.pages(lengths), rule.whole(lengths, seen)
        texts = [ids.tobytes() for ids in pages]
        order = np.array(
            sorted(range(rows), key=lambda row: (sizes[row], texts[row])), dtype=np.int32
        )
        shared = _shared_spans(pages, order, sizes, whole)
        covered = np.maximum(np.append(shared, 0), np.insert(shared, 0, 0)).astype(np.int32)
        if not covered.any():
            return GroupPlan.alone(rows)
        return GroupPlan(order, covered, _units(shared, most_rows))


def _shared_spans(pages: Sequence[Ints], order: Ints, sizes: Ints, whole: Ints) -> Ints:
    """Return the number of spans that each row has in common with the next one in the order, [rows
    - 1]. sizes: pages of a span of each row. whole: number of spans seen whole, of each row."""
    found: Ints = np.zeros(len(order) - 1, dtype=np.int32)
    neighbours = order.tolist()
    for place, (row, other) in enumerate(zip(neighbours, neighbours[1:], strict=False)):
        size, most = int(sizes[row]), int(min(whole[row], whole[other]))
        if sizes[other] != size or not most or pages[row][0] != pages[other][0]:
            continue
        differ = (pages[row][: most * size] != pages[other][: most * size]).nonzero()[0]
        found[place] = differ[0] // size if len(differ) else most
    return found


def _units(shared: Ints, most_rows: int) -> Ints:
    """Return the units of all spans, span by span. shared: spans that each place has in common with
    the next one."""
    units, begin = [np.empty((0, _FIELDS), dtype=np.int32)], 0
    for end in np.unique(shared[shared > 0]).tolist():
        # Between two of these numbers every span has the same runs.
        joined = np.concatenate(([False], shared >= end, [False]))
        firsts = (~joined[:-1] & joined[1:]).nonzero()[0]
        stops = (joined[:-1] & ~joined[1:]).nonzero()[0] + 1
        starts = [range(*bounds, most_rows) for bounds in zip(firsts, stops, strict=True)]
        places = np.concatenate([np.array(run) for run in starts])
        ends = np.repeat(stops, [len(run) for run in starts])
        block = np.empty((end - begin, len(places), _FIELDS), dtype=np.int32)
        block[:, :, _PLACE] = places
        block[:, :, _ROWS] = np.minimum(ends - places, most_rows)
        block[:, :, _SPAN] = np.arange(begin, end)[:, None]
        units.append(block.reshape(-1, _FIELDS))
        begin = end
    return np.concatenate(units)


@dataclass(frozen=True)
class SpanGroups:
    """A step's plan on a device, at fixed addresses, so that a captured graph reads each step's
    plan. All are int32.

    order, covered [B]: as in GroupPlan. units [most units, 3]: the plan's units; only the first
    ones count. count [1]: their number.
    """

    order: Tensor
    covered: Tensor
    units: Tensor
    count: Tensor

    @staticmethod
    def empty(rows: int, rule: SpanRule, device: torch.device) -> "SpanGroups":
        """Return memory for the plans of up to `rows` rows; it holds a plan without groups."""
        numbers = torch.zeros(rows + 1, dtype=torch.int32, device=device)
        most = rows * rule.most_spans
        return SpanGroups(
            torch.arange(rows, dtype=torch.int32, device=device),
            numbers[:rows],
            torch.zeros(most, _FIELDS, dtype=torch.int32, device=device),
            numbers[rows:],
        )

    def first(self, rows: int) -> "SpanGroups":
        """Return the same plan for the first `rows` rows of the memory."""
        return SpanGroups(self.order[:rows], self.covered[:rows], self.units, self.count)

    def put(self, plan: GroupPlan) -> None:
        """Copy a plan here, for later work in the stream. Places behind its rows keep anything:
        kernels do not read them."""
        rows, units = len(plan.order), len(plan.units)
        for place, numbers in (
            (self.order[:rows], plan.order),
            (self.covered[:rows], plan.covered),
            (self.units[:units], plan.units),
            (self.count, np.array([units], dtype=np.int32)),
        ):
            host = torch.from_numpy(numbers)
            if place.is_cuda:
                host = host.pin_memory()
            place.copy_(host, non_blocking=True)
