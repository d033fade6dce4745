"""What a runner keeps of the sequences that joined, and a plan's rows as numbers of this host.

Owns pages, slots and how far each lane is; knows no tensor. Thread rule: the runner's.
Invariant: position and pending of a lane are those behind all plans that were applied, whether
their forwards have ended or not. A forward draws as many tokens as its plan says, so the host knows
both without waiting; where a forward decides how many of its tokens hold, they become numbers on
the device, and resolve() a kernel.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tasuki.engine.forward_plan import (
    ForwardPlan,
    Ints,
    JoinedSequence,
    NewPages,
    PlanError,
    PlanGap,
    RowFlag,
    UnknownLane,
)
from tasuki.model.batch import SequenceSlice
from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.pycache.layout import PAGE_TOKENS


class SequencePages:
    """Ids of one sequence's pages, by logical page; grows. Who joins a lane anew is another
    object."""

    def __init__(self) -> None:
        self.ids: Ints = np.empty(0, dtype=np.int32)

    def grow(self, pages: Ints) -> None:
        self.ids = np.concatenate([self.ids, pages])


@dataclass(frozen=True)
class ResolvedRows:
    """Rows of a plan with nothing left open, columns [n] int32. tokens_at: where each row's tokens
    begin among the plan's, where they are not on its lane (on_lane [n] bool)."""

    lanes: Ints
    starts: Ints
    lengths: Ints
    read_slots: Ints
    write_slots: Ints
    num_sampled: Ints
    tokens_at: Ints
    on_lane: NDArray[np.bool_]
    decodes: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.lanes)

    @property
    def stops(self) -> Ints:
        """Tokens of each sequence once the forward has ended, without those drawn."""
        return self.starts + self.lengths

    def take(self, rows: NDArray[np.int64]) -> "ResolvedRows":
        return ResolvedRows(
            self.lanes[rows],
            self.starts[rows],
            self.lengths[rows],
            self.read_slots[rows],
            self.write_slots[rows],
            self.num_sampled[rows],
            self.tokens_at[rows],
            self.on_lane[rows],
            self.decodes[rows],
        )


class SequenceStates:
    """Of at most `lanes` lanes with at most `slots` working slots each."""

    def __init__(self, lanes: int, slots: int = 2) -> None:
        self._next = 0
        self._slots = np.zeros((lanes, slots), dtype=np.int32)
        self._slot_counts = np.zeros(lanes, dtype=np.int32)
        self._positions = np.zeros(lanes, dtype=np.int32)
        self._pending = np.zeros(lanes, dtype=np.int32)
        self._max_rows = np.zeros(lanes, dtype=np.int32)
        self._capacity = np.zeros(lanes, dtype=np.int32)
        self._pages: dict[int, SequencePages] = {}
        self._sampling: dict[int, SamplingParams] = {}

    def pages(self, lane: int) -> SequencePages:
        return self._pages[lane]

    def sampling(self, lane: int) -> SamplingParams:
        return self._sampling[lane]

    def apply(self, plan: ForwardPlan) -> ResolvedRows:
        """Take over the plan's changes; its rows. Raises PlanGap with nothing changed, PlanError
        with the plan's number used up."""
        if plan.number != self._next:
            raise PlanGap(f"plan {plan.number} came where {self._next} was due")
        self._next += 1
        for lane in plan.left:
            self._leave(lane)
        for item in plan.joined:
            self._join(item)
        for grown in plan.new_pages:
            self._grow(grown)
        return self._resolve(plan)

    def _leave(self, lane: int) -> None:
        if lane not in self._pages:
            raise UnknownLane(f"lane {lane} leaves, which no sequence has joined")
        del self._pages[lane], self._sampling[lane]
        self._slot_counts[lane] = self._capacity[lane] = 0

    def _join(self, item: JoinedSequence) -> None:
        lanes, slots = self._slots.shape
        if not 0 <= item.lane < lanes or not 0 < len(item.slots) <= slots:
            raise PlanError(
                f"lane {item.lane} joins with {len(item.slots)} slots: lanes go to {lanes}, each "
                f"with at most {slots}"
            )
        if item.lane in self._pages:
            raise PlanError(f"lane {item.lane} joins before its last sequence has left")
        self._pages[item.lane] = SequencePages()
        self._sampling[item.lane] = item.sampling
        self._slots[item.lane, : len(item.slots)] = item.slots
        self._slot_counts[item.lane] = len(item.slots)
        self._max_rows[item.lane] = item.max_rows
        self._positions[item.lane] = self._pending[item.lane] = 0

    def _grow(self, grown: NewPages) -> None:
        pages = self._pages.get(grown.lane)
        if pages is None:
            raise UnknownLane(f"lane {grown.lane} gets pages, which no sequence has joined")
        pages.grow(grown.pages)
        self._capacity[grown.lane] = len(pages.ids) * PAGE_TOKENS

    def _resolve(self, plan: ForwardPlan) -> ResolvedRows:
        rows = plan.rows
        lanes, flags = rows.lanes, rows.flags
        if len(lanes) and not 0 <= lanes.min() <= lanes.max() < len(self._capacity):
            raise UnknownLane(f"plan {plan.number} has rows of lanes that do not exist")
        if not self._slot_counts[lanes].all():
            raise UnknownLane(f"plan {plan.number} has rows of lanes that no sequence has joined")
        on_lane = (flags & RowFlag.TOKENS_ON_LANE) != 0
        pending = self._pending[lanes]
        starts = np.where(flags & RowFlag.POSITION_ON_LANE, self._positions[lanes], rows.positions)
        lengths = np.where(flags & RowFlag.LENGTH_ON_LANE, pending, rows.lengths)
        host = np.where(on_lane, 0, lengths)
        self._check(plan, starts, lengths, on_lane, int(host.sum()))
        self._positions[lanes] = starts + lengths
        self._pending[lanes] = rows.num_sampled
        return ResolvedRows(
            lanes,
            starts,
            lengths,
            self._slots[lanes, rows.read_indices],
            self._slots[lanes, rows.write_indices],
            rows.num_sampled,
            host.cumsum(dtype=np.int32) - host,
            on_lane,
            (flags & RowFlag.DECODES) != 0,
        )

    def _check(
        self,
        plan: ForwardPlan,
        starts: Ints,
        lengths: Ints,
        on_lane: NDArray[np.bool_],
        tokens: int,
    ) -> None:
        """Nothing is written outside of a sequence's own pages and slots, whatever a plan says.
        tokens: that its rows take from the host."""
        rows = plan.rows
        lanes = rows.lanes
        counts = self._slot_counts[lanes]
        wrong = {
            "a row without tokens": lengths < 1,
            "a value on its lane above the bound": (starts > rows.positions)
            | (lengths > rows.lengths),
            "a row beyond its limit": starts + lengths > rows.row_limits,
            "a row limit beyond its pages": rows.row_limits > self._capacity[lanes],
            "tokens that its lane does not have": on_lane & (lengths != self._pending[lanes]),
            "more tokens drawn than its lane holds": rows.num_sampled > self._max_rows[lanes],
            "a slot that it does not have": (rows.read_indices >= counts)
            | (rows.write_indices >= counts)
            | (rows.read_indices < 0)
            | (rows.write_indices < 0),
        }
        for what, found in wrong.items():
            if found.any():
                lane = int(lanes[found.argmax()])
                raise PlanError(f"plan {plan.number} gives lane {lane} {what}")
        if tokens != len(plan.tokens):
            raise PlanError(
                f"plan {plan.number} has {len(plan.tokens)} tokens for rows of {tokens} tokens"
            )

    def slices(
        self, plan: ForwardPlan, rows: ResolvedRows, drawn: dict[int, list[int]]
    ) -> list[SequenceSlice]:
        """The rows as the model takes them; drawn: tokens by lane, for rows that read theirs
        there."""
        marks: dict[int, list[tuple[int, int]]] = {}
        for mark in plan.checkpoints:
            marks.setdefault(int(plan.rows.lanes[mark.row]), []).append((mark.position, mark.slot))
        slices = []
        for row in range(len(rows)):
            lane, length, at = int(rows.lanes[row]), int(rows.lengths[row]), rows.tokens_at[row]
            host: list[int] = plan.tokens[at : at + length].tolist()
            slices.append(
                SequenceSlice(
                    token_ids=drawn[lane] if rows.on_lane[row] else host,
                    start=int(rows.starts[row]),
                    pages=self._pages[lane].ids.tolist(),
                    read_slot=int(rows.read_slots[row]),
                    write_slot=int(rows.write_slots[row]),
                    checkpoints=marks.get(lane, ()),
                )
            )
        return slices
