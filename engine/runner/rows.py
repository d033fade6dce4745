"""A plan's rows as numbers of this host, padded to the sizes of captured graphs.

Owns the pages, slots and length of each batch index; knows no tensor. Thread rule: the runner's.
"""

from dataclasses import dataclass, replace

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
from tasuki.model.forward import SequenceSlice
from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.pycache.layout import PAGE_TOKENS

_STRIDES = ((4, 2), (16, 4), (64, 8), (256, 16))
"""Pairs of a batch size and the distance between sizes below it; above the last the distance is
64."""


def padded_sizes(largest: int) -> list[int]:
    """Return the batch sizes with captured decode graphs. Pure.

    1, 2, 4, 8, 12, 16, 24, ...; the last is `largest`.

    A padding row costs only its share of the matrix products.
    """
    sizes = [1, 2]
    while sizes[-1] < largest:
        last = sizes[-1]
        sizes.append(last + next((stride for end, stride in _STRIDES if last < end), 64))
    return [size for size in sizes if size < largest] + [largest]


# Columns by batch index: position and pending tokens as in the invariant, most pending tokens,
# tokens held by the pages, slots (0: not joined).
_POSITIONS, _PENDING, _MAX_ROWS, _CAPACITY, _SLOTS = range(5)
_KEPT = 5
# Plain integers, because numpy handles enumerations more slowly.
_TOKENS, _POSITION = int(RowFlag.TOKENS_ON_LANE), int(RowFlag.POSITION_ON_LANE)
_LENGTH, _DECODES = int(RowFlag.LENGTH_ON_LANE), int(RowFlag.DECODES)
_VERIFIES, _DRAFTS = int(RowFlag.VERIFIES), int(RowFlag.DRAFTS_ON_LANE)


class SequencePages:
    """Ids of one sequence's pages, by logical page; grows. A sequence joining at the batch index
    later gets another object."""

    def __init__(self) -> None:
        self.ids: Ints = np.empty(0, dtype=np.int32)

    def grow(self, pages: Ints) -> None:
        self.ids = np.concatenate([self.ids, pages])


@dataclass(frozen=True)
class ResolvedRows:
    """Rows of a plan with all values known, columns [n] int32.

    tokens_at: index of each row's first token among the plan's tokens, unless they are at its batch
    index (on_lane [n] bool). drafts_on_lane [n] bool: all tokens but the first are at the batch
    index.
    """

    lanes: Ints
    starts: Ints
    lengths: Ints
    read_slots: Ints
    write_slots: Ints
    num_sampled: Ints
    tokens_at: Ints
    on_lane: NDArray[np.bool_]
    decodes: NDArray[np.bool_]
    verifies: NDArray[np.bool_]
    drafts_on_lane: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.lanes)

    @property
    def stops(self) -> Ints:
        """Length of each sequence once the forward has ended, without its sampled tokens."""
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
            self.verifies[rows],
            self.drafts_on_lane[rows],
        )


class SequenceStates:
    """A runner's data of joined sequences; turns a plan's rows into numbers of this host.

    Owns pages, slots and the length of each batch index; knows no tensor. Thread rule: the
    runner's. Invariant: position and pending of a batch index include all applied plans, even if
    their forwards have not ended. A forward samples as many tokens as its plan says, so the host
    knows both without waiting. If a forward decided its number of accepted tokens, they would
    become numbers on the device, and resolve() a kernel.

    At most `lanes` batch indices with at most `slots` working slots each.
    """

    def __init__(self, lanes: int, slots: int = 2) -> None:
        self._next = 0
        self._slots = np.zeros((lanes, slots), dtype=np.int32)
        # Kept in one array, because a plan's rows look all of it up at once.
        self._kept = np.zeros((_KEPT, lanes), dtype=np.int32)
        self._pages: dict[int, SequencePages] = {}
        self._sampling: dict[int, SamplingParams] = {}

    def pages(self, lane: int) -> SequencePages:
        return self._pages[lane]

    def sampling(self, lane: int) -> SamplingParams:
        return self._sampling[lane]

    def apply(self, plan: ForwardPlan) -> ResolvedRows:
        """Apply the plan's changes; return its rows. Raises PlanGap with nothing changed, PlanError
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
        self._kept[:, lane] = 0

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
        self._kept[:, item.lane] = (0, 0, item.max_rows, 0, len(item.slots))

    def _grow(self, grown: NewPages) -> None:
        pages = self._pages.get(grown.lane)
        if pages is None:
            raise UnknownLane(f"lane {grown.lane} gets pages, which no sequence has joined")
        pages.grow(grown.pages)
        self._kept[_CAPACITY, grown.lane] = len(pages.ids) * PAGE_TOKENS

    def _resolve(self, plan: ForwardPlan) -> ResolvedRows:
        lanes, bounds, most, read, write, limits, num_sampled, flags = plan.rows.columns
        if len(lanes) and not 0 <= lanes.min() <= lanes.max() < self._kept.shape[1]:
            raise UnknownLane(f"plan {plan.number} has rows of lanes that do not exist")
        position, pending, max_rows, capacity, slots = self._kept[:, lanes]
        if not slots.all():
            raise UnknownLane(f"plan {plan.number} has rows of lanes that no sequence has joined")
        on_lane, verifies = (flags & _TOKENS) != 0, (flags & _VERIFIES) != 0
        starts = np.where(flags & _POSITION, position, bounds)
        lengths = np.where(flags & _LENGTH, pending, most)
        # Even an invalid plan writes only to a sequence's own pages and slots.
        margins = {
            "a row without tokens": lengths - 1,
            "a position above its bound": bounds - starts,
            "a length above its bound": most - lengths,
            "a row beyond its limit": limits - starts - lengths,
            "a row limit beyond its pages": capacity - limits,
            "tokens that its lane does not have": np.where(on_lane, -abs(pending - lengths), 0),
            "more tokens drawn than its lane holds": max_rows - np.where(verifies, 1, num_sampled),
            "drafts without a token before them": np.where(verifies, lengths - num_sampled, 0),
            "a slot to read that it does not have": np.minimum(read, slots - 1 - read),
            "a slot to write that it does not have": np.minimum(write, slots - 1 - write),
        }
        if np.array([*margins.values()]).min(initial=0) < 0:
            what, margin = next((what, m) for what, m in margins.items() if m.min() < 0)
            raise PlanError(f"plan {plan.number} gives lane {lanes[margin.argmin()]} {what}")
        host = np.where(on_lane, 0, lengths)
        ends = host.cumsum(dtype=np.int32)
        if len(lanes) and ends[-1] != len(plan.tokens):
            raise PlanError(
                f"plan {plan.number} has {len(plan.tokens)} tokens for rows of {ends[-1]} tokens"
            )
        for guess in plan.guesses:
            if starts[guess.row] + lengths[guess.row] + guess.count > capacity[guess.row]:
                lane = lanes[guess.row]
                raise PlanError(f"plan {plan.number} gives lane {lane} guesses beyond its pages")
        for guess in plan.first_guesses:
            if not verifies[guess.row] or lengths[guess.row] != guess.count + 1:
                lane = lanes[guess.row]
                raise PlanError(f"plan {plan.number} gives lane {lane} guesses without a place")
        self._kept[_POSITIONS, lanes] = starts + lengths
        self._kept[_PENDING, lanes] = np.where(verifies, 0, num_sampled)
        return ResolvedRows(
            lanes,
            starts,
            lengths,
            self._slots[lanes, read],
            self._slots[lanes, write],
            num_sampled,
            ends - host,
            on_lane,
            (flags & _DECODES) != 0,
            verifies,
            (flags & _DRAFTS) != 0,
        )

    def slices(
        self, plan: ForwardPlan, rows: ResolvedRows, drawn: dict[int, list[int]]
    ) -> list[SequenceSlice]:
        """Return the rows in the model's form. drawn: tokens by batch index, for rows with tokens
        there."""
        marks: dict[int, list[tuple[int, int]]] = {}
        for mark in plan.checkpoints:
            marks.setdefault(int(plan.rows.lanes[mark.row]), []).append((mark.position, mark.slot))
        slices = []
        for row in range(len(rows)):
            lane, length, at = int(rows.lanes[row]), int(rows.lengths[row]), rows.tokens_at[row]
            host: list[int] = plan.tokens[at : at + length].tolist()
            verifies = bool(rows.verifies[row])
            slices.append(
                SequenceSlice(
                    token_ids=drawn[lane] if rows.on_lane[row] else host,
                    start=int(rows.starts[row]),
                    pages=self._pages[lane].ids.tolist(),
                    read_slot=int(rows.read_slots[row]),
                    write_slot=None if verifies else int(rows.write_slots[row]),
                    checkpoints=marks.get(lane, ()),
                    stepped=verifies,
                )
            )
        return slices


MOST_ROWS = 64
"""Most rows with drafts in a step. With more, matrix products take too long for a gain by
drafts."""
_WIDTHS = (2, 4, 8)


def widths(drafts: int) -> list[int]:
    """Return the row lengths with captured graphs, for rows of at most `drafts` drafts. A padding
    token costs only its share of the matrix products."""
    return sorted({min(width, drafts + 1) for width in _WIDTHS} | {drafts + 1})


def token_rows(rows: ResolvedRows, width: int) -> ResolvedRows:
    """Return rows of several tokens as `width` one-token rows each, in order. Pure.

    Places past a row's length have position -1.
    """
    place = np.tile(np.arange(width, dtype=np.int32), len(rows))
    each = rows.take(np.repeat(np.arange(len(rows)), width))
    starts: Ints = np.where(place < each.lengths, each.starts + place, np.int32(-1))
    return replace(each, starts=starts, lengths=np.ones_like(each.lengths))
