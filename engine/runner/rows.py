"""A plan's rows with all values known on the host, and the padded sizes of captured graphs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tasuki.engine.forward_plan import (
    ForwardPlan,
    Ints,
    JoinedSequence,
    NewPages,
    PlanError,
    PlanGap,
    RowFlag,
    RowPositions,
    UnknownBatchIndex,
)
from tasuki.engine.pictures.row_store import PictureNumber
from tasuki.model.forward import RowSpan, SequenceSlice
from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.pycache.layout import PAGE_TOKENS

_STRIDES = ((4, 2), (16, 4), (64, 8), (256, 16))
"""Steps between padded batch sizes: (size, step used below this size). Above the last size the step
is 64."""


def padded_sizes(largest: int) -> list[int]:
    """Return the batch sizes with captured decode graphs: 1, 2, 4, 8, 12, 16, 24, ...; the last is
    `largest`. Pure.

    A padding row costs only its share of the matrix products.
    """
    sizes = [1, 2]
    while sizes[-1] < largest:
        last = sizes[-1]
        sizes.append(last + next((stride for end, stride in _STRIDES if last < end), 64))
    return [size for size in sizes if size < largest] + [largest]


# Columns by batch index: position and pending tokens as in the invariant, most pending tokens,
# tokens held by the pages, slots (0: not joined), rotary position minus position behind pictures.
_POSITIONS, _PENDING, _MAX_ROWS, _CAPACITY, _SLOTS, _DELTAS = range(6)
_KEPT = 6
FindRows = Callable[[PictureNumber], Tensor]
"""Return stored rows of a picture [tokens, hidden]. Raises RowsGone."""
# Plain integers, because numpy handles enumerations more slowly.
_TOKENS, _POSITION = int(RowFlag.TOKENS_AT_INDEX), int(RowFlag.POSITION_AT_INDEX)
_LENGTH, _DECODES = int(RowFlag.LENGTH_AT_INDEX), int(RowFlag.DECODES)
_VERIFIES, _DRAFTS = int(RowFlag.VERIFIES), int(RowFlag.DRAFTS_AT_INDEX)


class SequencePages:
    """Page ids of one sequence, by logical page; they grow. A later sequence at the same batch
    index gets another object."""

    def __init__(self) -> None:
        self.ids: Ints = np.empty(0, dtype=np.int32)

    def grow(self, pages: Ints) -> None:
        self.ids = np.concatenate([self.ids, pages])


@dataclass(frozen=True)
class ResolvedRows:
    """Rows of a plan with all values known on the host, as columns [n] int32.

    tokens_at: index of the row's first token among the plan's tokens. at_index [n] bool: True if
    the row's tokens are stored in the runner at its batch index instead. drafts_at_index [n] bool:
    True if all tokens but the first are stored at the batch index. rope_deltas: rotary position
    minus position, of a token behind all pictures.
    """

    batch_indices: Ints
    starts: Ints
    lengths: Ints
    read_slots: Ints
    write_slots: Ints
    num_sampled: Ints
    tokens_at: Ints
    at_index: NDArray[np.bool_]
    decodes: NDArray[np.bool_]
    verifies: NDArray[np.bool_]
    drafts_at_index: NDArray[np.bool_]
    rope_deltas: Ints

    def __len__(self) -> int:
        return len(self.batch_indices)

    @property
    def stops(self) -> Ints:
        """Length of each row's sequence after the forward, in tokens, without sampled ones."""
        return self.starts + self.lengths

    def take(self, rows: NDArray[np.int64]) -> "ResolvedRows":
        return ResolvedRows(*(column[rows] for column in vars(self).values()))


class SequenceStates:
    """A runner's record of its sequences; it computes all values of a plan's rows on the host.

    Owns pages, slots and the length of each batch index; knows no tensor. Thread rule: the
    runner's. Invariant: the position and the pending tokens of a batch index include all applied
    plans, even if their forwards have not ended. A forward samples as many tokens as its plan says,
    so the host knows both without waiting. If a forward decided its number of accepted tokens, both
    would become numbers on the device, and resolving rows a kernel.

    batch_indices: number of batch indices. slots: most working slots of each.
    """

    def __init__(self, batch_indices: int, slots: int = 2) -> None:
        self._next = 0
        self._slots = np.zeros((batch_indices, slots), dtype=np.int32)
        # Kept in one array, because a plan's rows look all of it up at once.
        self._kept = np.zeros((_KEPT, batch_indices), dtype=np.int32)
        self._pages: dict[int, SequencePages] = {}
        self._sampling: dict[int, SamplingParams] = {}

    def pages(self, batch_index: int) -> SequencePages:
        return self._pages[batch_index]

    def sampling(self, batch_index: int) -> SamplingParams:
        return self._sampling[batch_index]

    def rope_delta(self, batch_index: int) -> int:
        return int(self._kept[_DELTAS, batch_index])

    def apply(self, plan: ForwardPlan) -> ResolvedRows:
        """Apply the plan's changes; return its rows. Raises PlanGap with nothing changed, or
        PlanError with the plan's number used up."""
        if plan.number != self._next:
            raise PlanGap(f"plan {plan.number} came where {self._next} was due")
        self._next += 1
        for batch_index in plan.left:
            self._leave(batch_index)
        for item in plan.joined:
            self._join(item)
        for grown in plan.new_pages:
            self._grow(grown)
        return self._resolve(plan)

    def _leave(self, batch_index: int) -> None:
        if batch_index not in self._pages:
            raise UnknownBatchIndex(
                f"batch index {batch_index} leaves, which no sequence has joined"
            )
        del self._pages[batch_index], self._sampling[batch_index]
        self._kept[:, batch_index] = 0

    def _join(self, item: JoinedSequence) -> None:
        batch_indices, slots = self._slots.shape
        if not 0 <= item.batch_index < batch_indices or not 0 < len(item.slots) <= slots:
            raise PlanError(
                f"batch index {item.batch_index} joins with {len(item.slots)} slots: batch indices "
                f"end at {batch_indices}, each with at most {slots}"
            )
        if item.batch_index in self._pages:
            raise PlanError(
                f"batch index {item.batch_index} joins before its last sequence has left"
            )
        if item.rope_delta > 0:
            raise PlanError(
                f"batch index {item.batch_index} joins with a rope delta of {item.rope_delta}, and "
                "pictures only take positions back"
            )
        self._pages[item.batch_index] = SequencePages()
        self._sampling[item.batch_index] = item.sampling
        self._slots[item.batch_index, : len(item.slots)] = item.slots
        kept = (0, 0, item.max_rows, 0, len(item.slots), item.rope_delta)
        self._kept[:, item.batch_index] = kept

    def _grow(self, grown: NewPages) -> None:
        pages = self._pages.get(grown.batch_index)
        if pages is None:
            raise UnknownBatchIndex(
                f"batch index {grown.batch_index} gets pages, which no sequence has joined"
            )
        pages.grow(grown.pages)
        self._kept[_CAPACITY, grown.batch_index] = len(pages.ids) * PAGE_TOKENS

    def _resolve(self, plan: ForwardPlan) -> ResolvedRows:
        batch_indices, bounds, most, read, write, limits, num_sampled, flags = plan.rows.columns
        if (
            len(batch_indices)
            and not 0 <= batch_indices.min() <= batch_indices.max() < self._kept.shape[1]
        ):
            raise UnknownBatchIndex(f"plan {plan.number} has rows of unknown batch indices")
        position, pending, max_rows, capacity, slots, deltas = self._kept[:, batch_indices]
        if not slots.all():
            raise UnknownBatchIndex(
                f"plan {plan.number} has rows of batch indices without a sequence"
            )
        at_index, verifies = (flags & _TOKENS) != 0, (flags & _VERIFIES) != 0
        starts = np.where(flags & _POSITION, position, bounds)
        lengths = np.where(flags & _LENGTH, pending, most)
        # Even an invalid plan writes only to a sequence's own pages and slots.
        margins = {
            "a row without tokens": lengths - 1,
            "a position above its bound": bounds - starts,
            "a length above its bound": most - lengths,
            "a row beyond its limit": limits - starts - lengths,
            "a row limit beyond its pages": capacity - limits,
            "tokens missing at its batch index": np.where(at_index, -abs(pending - lengths), 0),
            "more sampled tokens than its batch index holds": max_rows
            - np.where(verifies, 1, num_sampled),
            "drafts without a token before them": np.where(verifies, lengths - num_sampled, 0),
            "a slot to read that it does not have": np.minimum(read, slots - 1 - read),
            "a slot to write that it does not have": np.minimum(write, slots - 1 - write),
            "a rotary position below 0": np.where(own_turns(plan, len(starts)), 0, starts + deltas),
        }
        if np.array([*margins.values()]).min(initial=0) < 0:
            what, margin = next((what, m) for what, m in margins.items() if m.min() < 0)
            raise PlanError(
                f"plan {plan.number} gives batch index {batch_indices[margin.argmin()]} {what}"
            )
        host = np.where(at_index, 0, lengths)
        ends = host.cumsum(dtype=np.int32)
        if len(batch_indices) and ends[-1] != len(plan.tokens):
            raise PlanError(
                f"plan {plan.number} has {len(plan.tokens)} tokens for rows of {ends[-1]} tokens"
            )
        for guess in plan.guesses:
            if starts[guess.row] + lengths[guess.row] + guess.count > capacity[guess.row]:
                batch_index = batch_indices[guess.row]
                raise PlanError(
                    f"plan {plan.number} gives batch index {batch_index} guesses beyond its pages"
                )
        for guess in plan.first_guesses:
            if not verifies[guess.row] or lengths[guess.row] != guess.count + 1:
                batch_index = batch_indices[guess.row]
                raise PlanError(
                    f"plan {plan.number} gives batch index {batch_index} guesses without a place"
                )
        self._kept[_POSITIONS, batch_indices] = starts + lengths
        self._kept[_PENDING, batch_indices] = np.where(verifies, 0, num_sampled)
        return ResolvedRows(
            batch_indices,
            starts,
            lengths,
            self._slots[batch_indices, read],
            self._slots[batch_indices, write],
            num_sampled,
            ends - host,
            at_index,
            (flags & _DECODES) != 0,
            verifies,
            (flags & _DRAFTS) != 0,
            deltas,
        )

    def slices(
        self,
        plan: ForwardPlan,
        rows: ResolvedRows,
        sampled: dict[int, list[int]],
        find: FindRows | None = None,
        numbers: NDArray[np.int64] | None = None,
    ) -> list[SequenceSlice]:
        """Return the rows as the model's sequence slices. sampled: tokens by batch index, for rows
        with tokens stored in the runner. find: finds the rows of pictures; None: the runner stores
        none. numbers: the rows' indices in the plan; None: all. Raises PlanError, RowsGone."""
        marks: dict[int, list[tuple[int, int]]] = {}
        for mark in plan.checkpoints:
            marks.setdefault(int(plan.rows.batch_indices[mark.row]), []).append(
                (mark.position, mark.slot)
            )
        slices = []
        for row in range(len(rows)):
            batch_index, at = int(rows.batch_indices[row]), rows.tokens_at[row]
            host: list[int] = plan.tokens[at : at + rows.lengths[row]].tolist()
            verifies = bool(rows.verifies[row])
            slices.append(
                SequenceSlice(
                    token_ids=sampled[batch_index] if rows.at_index[row] else host,
                    start=int(rows.starts[row]),
                    pages=self._pages[batch_index].ids.tolist(),
                    read_slot=int(rows.read_slots[row]),
                    write_slot=None if verifies else int(rows.write_slots[row]),
                    checkpoints=marks.get(batch_index, ()),
                    stepped=verifies,
                    rope_delta=self.rope_delta(batch_index),
                )
            )
        if not plan.rope and not plan.pictures:
            return slices
        every = range(len(rows)) if numbers is None else numbers.tolist()
        return with_pictures(plan, slices, find, every)


def own_turns(plan: ForwardPlan, rows: int) -> NDArray[np.bool_]:
    """Return bool [rows]: true for rows of the plan with pictures, or with rotary positions of
    their own. Raises PlanError for a row that the plan does not have."""
    found: NDArray[np.bool_] = np.zeros(rows, dtype=np.bool_)
    for row in _pictured(plan):
        if not 0 <= row < rows:
            raise PlanError(f"plan {plan.number} has a picture in row {row} of {rows}")
        found[row] = True
    return found


def _pictured(plan: ForwardPlan) -> list[int]:
    return [item.row for item in plan.rope] + [item.row for item in plan.pictures]


def with_pictures(
    plan: ForwardPlan, slices: list[SequenceSlice], find: FindRows | None, numbers: Sequence[int]
) -> list[SequenceSlice]:
    """Return a plan's slices with its rotary positions and its pictures' rows. find: returns a
    picture's stored rows; None: the runner stores none. numbers: the slices' rows in the plan.
    Raises PlanError, RowsGone."""
    if plan.pictures and find is None:
        raise PlanError(f"plan {plan.number} has pictures, and this runner stores no rows")
    found = dict(zip(numbers, slices, strict=True))
    strays = {row for row in _pictured(plan) if row not in found}
    if strays:
        raise PlanError(f"plan {plan.number} has a picture in row {min(strays)}, no prompt's")
    for item in plan.rope:
        into = found[item.row]
        _check_rope(plan, item, into)
        found[item.row] = replace(into, rope_positions=torch.tensor(item.positions))
    for picture in plan.pictures:
        assert find is not None
        into, rows = found[picture.row], find(picture.picture)
        span = rows[picture.first : picture.first + picture.count]
        within = picture.token >= 0 and picture.token + picture.count <= len(into.token_ids)
        if len(span) != picture.count or not within or picture.first < 0:
            raise PlanError(
                f"plan {plan.number} puts rows {picture.first} to {picture.first + picture.count} "
                f"of {len(rows)} at token {picture.token} of {len(into.token_ids)}"
            )
        spans = (*into.pictures, RowSpan(picture.token, span))
        found[picture.row] = replace(into, pictures=spans)
    return [found[number] for number in numbers]


def _check_rope(plan: ForwardPlan, item: RowPositions, into: SequenceSlice) -> None:
    """Raise PlanError unless the row's rotary positions fit its tokens. A position is at most its
    token's index, so it is in any table as long as the context."""
    tokens = len(into.token_ids)
    if item.positions.shape != (3, tokens + 1):
        raise PlanError(
            f"plan {plan.number} has rope positions {list(item.positions.shape)} for {tokens} "
            "tokens"
        )
    most = np.arange(into.start - 1, into.start + tokens)
    least = np.minimum(most, 0)
    if (item.positions < least).any() or (item.positions > most).any():
        raise PlanError(
            f"plan {plan.number} has rope positions {item.positions.min()} to "
            f"{item.positions.max()} for tokens {into.start} to {into.start + tokens}"
        )


MOST_ROWS = 64
"""Most rows with drafts in a step. Products of more rows take longer than drafts save."""
_WIDTHS = (2, 4, 8)


def widths(drafts: int) -> list[int]:
    """Return the row lengths, in tokens, with captured graphs for rows of at most `drafts` drafts.
    A padding token costs only its share of the matrix products."""
    return sorted({min(width, drafts + 1) for width in _WIDTHS} | {drafts + 1})


def token_rows(rows: ResolvedRows, width: int) -> ResolvedRows:
    """Return each row of several tokens as `width` one-token rows, in order. Pure.

    One-token rows past a row's length have position -1.
    """
    place = np.tile(np.arange(width, dtype=np.int32), len(rows))
    each = rows.take(np.repeat(np.arange(len(rows)), width))
    starts: Ints = np.where(place < each.lengths, each.starts + place, np.int32(-1))
    return replace(each, starts=starts, lengths=np.ones_like(each.lengths))
