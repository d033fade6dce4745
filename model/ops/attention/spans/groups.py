"""Rows of a batch that share first pages, as groups for attention: the plan of a step.

Rows are ordered so that equal page tables are neighbours. In each span, a run of neighbours with
equal pages is attended together, a few rows at a time. Every one of their queries must see the
whole span. Later spans are each row's own. The kernel finds own spans from lengths
on the device. So a plan stays valid while rows grow, until a row's spans change their length.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

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
    sizes, whole = sizes[order], whole[order]
    # Pages to compare of each pair.
    limits = np.where(sizes[:-1] == sizes[1:], np.minimum(whole[:-1], whole[1:]) * sizes[:-1], 0)
    width = int(limits.max())
    if not width:
        return limits
    table = np.zeros((len(order), width), dtype=np.int32)
    for place, row in enumerate(order.tolist()):
        own = pages[row][:width]
        table[place, : len(own)] = own
    differs = table[:-1] != table[1:]
    equal = np.where(differs.any(axis=1), differs.argmax(axis=1), width)
    return np.minimum(equal, limits) // sizes[:-1]


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
    """A step's plan on a device, at fixed addresses for captured graphs. All tensors are int32.

    rule: lengths of spans. most_rows: most rows of a unit. header [2 B + 1]: order and covered, as
    in GroupPlan, and the number of units. units [most units, 3]: the plan's units first.
    """

    rule: SpanRule
    most_rows: int
    header: Tensor
    units: Tensor

    @staticmethod
    def empty(rows: int, rule: SpanRule, most_rows: int, device: torch.device) -> "SpanGroups":
        """Return memory for the plans of up to `rows` rows; it holds a plan without groups."""
        units = torch.zeros(rows * rule.most_spans, _FIELDS, dtype=torch.int32, device=device)
        header = torch.zeros(2 * rows + 1, dtype=torch.int32, device=device)
        torch.arange(rows, out=header[:rows])
        return SpanGroups(rule, most_rows, header, units)

    @property
    def _rows(self) -> int:
        return len(self.header) // 2

    @property
    def order(self) -> Tensor:
        return self.header[: self._rows]

    @property
    def covered(self) -> Tensor:
        return self.header[self._rows : -1]

    @property
    def count(self) -> Tensor:
        """Return the number of units, [1]."""
        return self.header[-1:]

    def plan(self, pages: Sequence[Ints], lengths: Ints, seen: Ints) -> None:
        """Find the groups of a step's rows, and copy their plan here for later work in the stream.
        pages, lengths, seen: as in GroupPlan.of()."""
        self.put(GroupPlan.of(pages, lengths, seen, self.rule, self.most_rows))

    def put(self, plan: GroupPlan) -> None:
        """Copy a plan here, for later work in the stream."""
        rows, units = len(plan.order), len(plan.units)
        header = np.zeros(len(self.header), dtype=np.int32)
        header[:rows] = plan.order
        header[self._rows : self._rows + rows] = plan.covered
        header[-1] = units
        _send(header, self.header)
        if units:
            _send(plan.units, self.units[:units])


def _send(numbers: Ints, there: Tensor) -> None:
    host = torch.from_numpy(numbers)
    there.copy_(host.pin_memory() if there.is_cuda else host, non_blocking=True)
