"""Turns what the scheduler chose into a plan: plain data, as changes against what the runner keeps.

Owns the plans' numbers and, of every lane that joined, whose it is and how many of its pages the
runner has. Thread rule: the engine loop. Invariant: what is remembered here of a lane is what the
runner keeps of it once it has run every plan that was made, so each plan must be launched, once and
in order.
"""

import numpy as np
from numpy.typing import NDArray

from tasuki.engine.forward_plan import (
    COLUMNS,
    ON_LANE,
    Fold,
    ForwardPlan,
    Guess,
    Ints,
    JoinedSequence,
    NewPages,
    PlanRows,
    RowCheckpoint,
    RowFlag,
    ScoredRow,
)
from tasuki.engine.progress import Lanes, ProgressTable
from tasuki.engine.request import Active, Request
from tasuki.model.ops.sampling.logit_adjustments import TokensBefore
from tasuki.pycache.arena import CopyOp
from tasuki.pycache.layout import PAGE_TOKENS

from .scheduled_forward import AnswerRows, ScheduledForward, ScheduledSequence

_DECODES, _ON_LANE, _VERIFIES = RowFlag.DECODES.value, ON_LANE.value, RowFlag.VERIFIES.value
_DRAFTS_ON_LANE = RowFlag.DRAFTS_ON_LANE.value
_MAX_ROWS = 1
"""Tokens that a forward draws for a sequence."""


class _Changes:
    """Of one plan against what the runner keeps."""

    def __init__(self) -> None:
        self.left: list[int] = []
        self.joined: list[JoinedSequence] = []
        self.new_pages: list[NewPages] = []


class ForwardPlanner:
    def __init__(self, progress: ProgressTable) -> None:
        """progress: which sequences run."""
        lanes = len(progress.holders)
        self._progress = progress
        self._number = 0
        self._joined: NDArray[np.int64] = np.zeros(lanes, dtype=np.int64)
        """By lane the number of the sequence that the runner has there; 0: none."""
        self._joined_count = 0
        self._row_limits: Ints = np.zeros(lanes, dtype=np.int32)
        """Tokens that the pages hold which the runner has."""

    def plan(
        self,
        forward: ScheduledForward,
        copies: tuple[CopyOp, ...],
        folds: tuple[Fold, ...] = (),
    ) -> ForwardPlan:
        """The next plan; it must be launched. REQUIRES: no two rows share a lane."""
        answers = forward.answers
        changes = _Changes()
        columns: Ints = np.empty((COLUMNS, len(forward)), dtype=np.int32)
        first = len(answers)
        tokens = self._answer_rows(answers, columns[:, :first], changes)
        checkpoints: list[RowCheckpoint] = []
        scored: list[ScoredRow] = []
        guesses: list[Guess] = []
        first_guesses: list[Guess] = []
        for row, item in enumerate(forward.sequences, first):
            tokens += self._sequence_row(item, columns[:, row], changes)
            scored += _scored(row, item)
            if item.guesses:
                guesses.append(Guess(row, item.guesses))
            if item.first_guesses:
                first_guesses.append(Guess(row, item.first_guesses))
            for planned, slot in item.checkpoints:
                checkpoints.append(RowCheckpoint(row, planned.position, slot))
        if self._joined_count > len(forward):
            changes.left += self._leave()
        return ForwardPlan(
            self._next_number(),
            copies,
            tuple(changes.left),
            tuple(changes.joined),
            tuple(changes.new_pages),
            PlanRows(columns),
            np.array(tokens, dtype=np.int32),
            tuple(checkpoints),
            tuple(scored),
            folds,
            guesses=tuple(guesses),
            first_guesses=tuple(first_guesses),
        )

    def stores_alone(self, copies: tuple[CopyOp, ...], folds: tuple[Fold, ...] = ()) -> ForwardPlan:
        """The next plan, which computes nothing new; it must be launched too."""
        return ForwardPlan(self._next_number(), copies, tuple(self._leave()), folds=folds)

    def _next_number(self) -> int:
        number = self._number
        self._number += 1
        return number

    def _answer_rows(self, answers: AnswerRows, columns: Ints, changes: _Changes) -> list[int]:
        """Fills the columns; the tokens of those rows whose token is not on a lane."""
        lanes, tokens = answers.lanes, answers.tokens
        changed = (self._joined[lanes] != answers.holders) | (
            self._row_limits[lanes] != answers.row_limits
        )
        for row in changed.nonzero()[0].tolist():
            self._follow(answers.requests[row], int(lanes[row]), changes)
        on_lane = tokens.drawn_before
        columns[0], columns[1], columns[2] = lanes, tokens.starts, 1
        columns[3], columns[4] = tokens.read_index, tokens.write_index
        columns[5], columns[6] = answers.row_limits, 1
        columns[7] = on_lane * _ON_LANE + _DECODES
        known: list[int] = []
        for row in (~on_lane).nonzero()[0].tolist():
            start = int(tokens.starts[row])
            known += answers.requests[row].token_slice(start, start + 1)
        return known

    def _sequence_row(self, item: ScheduledSequence, column: Ints, changes: _Changes) -> list[int]:
        """Fills the row's column; its tokens."""
        lane = item.lane
        self._follow(item.request, lane, changes)
        flags = _VERIFIES if item.drafts else _DECODES if item.decodes else 0
        flags += item.drafts_on_lane * _DRAFTS_ON_LANE
        column[:] = (
            lane,
            item.start,
            item.stop - item.start,
            item.read_index,
            item.write_index,
            self._row_limits[lane],
            item.num_sampled,
            flags,
        )
        known = item.request.token_slice(item.start, item.stop - len(item.drafts))
        return known + list(item.drafts)

    def _follow(self, request: Request, lane: int, changes: _Changes) -> None:
        """Let the runner have the request's sequence and all of its pages."""
        state = request.state
        assert isinstance(state, Active)
        if self._joined[lane] != state.progress.number:
            if self._joined[lane]:
                changes.left.append(lane)
            else:
                self._joined_count += 1
            changes.joined.append(_joined(lane, state.slots, request))
            self._joined[lane], self._row_limits[lane] = state.progress.number, 0
        limit = state.allocation.capacity_tokens
        if limit != self._row_limits[lane]:
            pages = state.allocation.pages[self._row_limits[lane] // PAGE_TOKENS :]
            changes.new_pages.append(NewPages(lane, pages))
            self._row_limits[lane] = limit

    def _leave(self) -> list[int]:
        """Lanes of sequences that run no more."""
        over = (self._joined != 0) & (self._joined != self._progress.holders)
        gone: Lanes = over.nonzero()[0]
        self._joined[gone] = 0
        self._joined_count -= len(gone)
        found: list[int] = gone.tolist()
        return found


def _scored(row: int, item: ScheduledSequence) -> list[ScoredRow]:
    """Of a row of a prompt that is to be scored; none where no token of it is behind the row's."""
    scoring = item.request.scoring
    count = 0 if scoring is None else scoring.count(item.start, item.stop)
    if scoring is None or not count:
        return []
    return [ScoredRow(row, count, scoring.top, int(scoring.tokens[item.start + count]))]


def _joined(lane: int, slots: tuple[int, ...], request: Request) -> JoinedSequence:
    """All that was drawn for the request before is in its output: nothing of it is in flight."""
    sampling = request.sampling
    before = None
    if sampling.adjusts:
        before = TokensBefore.of(sampling, request.prompt, request.output)
    return JoinedSequence(lane, slots, _MAX_ROWS, sampling, before)
