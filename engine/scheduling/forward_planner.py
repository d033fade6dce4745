"""Turns what the scheduler chose into a plan: plain data, as changes against what the runner keeps.

Owns the plans' numbers and, of every lane that joined, how many of its pages the runner has. Thread
rule: the engine loop. Invariant: what is remembered here of a lane is what the runner keeps of it
once it has run every plan that was made, so each plan must be launched, once and in order.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tasuki.engine.forward_plan import (
    ON_LANE,
    ForwardPlan,
    JoinedSequence,
    NewPages,
    RowCheckpoint,
    RowFlag,
    plan_rows,
)
from tasuki.pycache._cpp_cache import Allocation
from tasuki.pycache.copies import CopyOp
from tasuki.pycache.layout import PAGE_TOKENS

from .scheduled_sequence import ScheduledSequence

_DECODES, _ON_LANE = RowFlag.DECODES.value, ON_LANE.value
_MAX_ROWS = 1
"""Tokens that a forward draws for a sequence."""


@dataclass
class _Joined:
    """row_limit: tokens that the pages hold which the runner has. last: what was planned of it
    last."""

    allocation: Allocation
    row_limit: int
    last: ScheduledSequence


class ForwardPlanner:
    def __init__(self) -> None:
        self._number = 0
        self._lanes: dict[int, _Joined] = {}

    def plan(
        self, scheduled: Sequence[ScheduledSequence], copies: tuple[CopyOp, ...]
    ) -> ForwardPlan:
        """The next plan; it must be launched. REQUIRES: no two share a lane."""
        left: list[int] = []
        joined: list[JoinedSequence] = []
        new_pages: list[NewPages] = []
        numbers: list[int] = []
        tokens: list[int] = []
        checkpoints: list[RowCheckpoint] = []
        for row, item in enumerate(scheduled):
            lane, allocation = item.lane, item.active.allocation
            known = self._lanes.get(lane)
            if known is None or known.allocation is not allocation:
                if known is not None:
                    left.append(lane)
                known = self._lanes[lane] = _Joined(allocation, 0, item)
                slots = item.active.slots
                joined.append(JoinedSequence(lane, slots, _MAX_ROWS, item.request.sampling))
            known.last = item
            row_limit = allocation.capacity_tokens
            if row_limit != known.row_limit:
                pages = allocation.pages[known.row_limit // PAGE_TOKENS :]
                new_pages.append(NewPages(lane, pages))
                known.row_limit = row_limit
            flags = _DECODES if item.decodes else 0
            if item.drawn_before:
                flags |= _ON_LANE
            else:
                tokens += item.request.token_slice(item.start, item.stop)
            numbers += (
                lane,
                item.start,
                item.stop - item.start,
                item.read_index,
                item.write_index,
                row_limit,
                item.num_sampled,
                flags,
            )
            for planned, slot in item.checkpoints:
                checkpoints.append(RowCheckpoint(row, planned.position, slot))
        if len(self._lanes) > len(scheduled):
            left += self._leave({item.lane for item in scheduled})
        plan = ForwardPlan(
            self._number,
            copies,
            tuple(left),
            tuple(joined),
            tuple(new_pages),
            plan_rows(numbers),
            np.array(tokens, dtype=np.int32),
            tuple(checkpoints),
        )
        self._number += 1
        return plan

    def _leave(self, scheduled: set[int]) -> list[int]:
        """Lanes of requests that run no more on the allocation they had."""
        gone = [
            lane
            for lane, known in self._lanes.items()
            if lane not in scheduled and not known.last.live
        ]
        for lane in gone:
            del self._lanes[lane]
        return gone
