"""The content of one forward: kept by the engine until it completes, and planned for the runner.

ForwardPlanner turns the scheduler's choice into a plan: plain data, as changes against the runner's
copy. It owns the plans' numbers. It also keeps, for each batch index, the sequence in the runner
and its known pages. Thread rule: the engine loop. Invariant: this record of a batch index equals
the runner's after it has run every plan made. So each plan must be launched, once and in order.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tasuki.engine.forward_plan import (
    AT_INDEX,
    COLUMNS,
    Fold,
    ForwardPlan,
    Guess,
    Ints,
    JoinedSequence,
    NewPages,
    PictureRows,
    PlanRows,
    RowCheckpoint,
    RowFlag,
    RowPositions,
    ScoredRow,
)
from tasuki.engine.pictures.placed import PictureSpan
from tasuki.engine.pictures.row_store import PictureNumber
from tasuki.engine.progress import BatchIndices, NextTokens, ProgressTable
from tasuki.engine.request import Active, PlannedCheckpoint, Request
from tasuki.engine.speculation.draft_limit import StepShape
from tasuki.model.ops.sampling.logit_adjustments import TokensBefore
from tasuki.pycache.arena import CopyOp
from tasuki.pycache.layout import PAGE_TOKENS


@dataclass(slots=True)
class ScheduledSequence:
    """One forward's part of one request, kept by the engine until the forward completes.

    It computes tokens [start, stop) of a running request. checkpoints: checkpoints among these
    tokens, with their slots. read_index, write_index: indices of the working slots read and
    written.

    num_sampled: number of tokens it samples; above 0 only if it reaches the last known token.
    drafts: the last of its tokens, not sampled yet. With drafts it samples at most num_sampled
    tokens; the accepted number is known when it completes. first_guesses: number of drafts made by
    the model's draft layer before the forward; the values in `drafts` are placeholders then.
    drafts_at_index: True if the values in `drafts` are placeholders for tokens stored in the
    runner. guesses: number of tokens to propose after the sampled ones. pictures: rows among its
    tokens, each with the number of its stored rows.
    """

    request: Request
    active: Active
    start: int
    stop: int
    read_index: int
    write_index: int
    num_sampled: int
    checkpoints: tuple[tuple[PlannedCheckpoint, int], ...] = ()
    drafts: tuple[int, ...] = ()
    first_guesses: int = 0
    drafts_at_index: bool = False
    guesses: int = 0
    pictures: tuple[tuple[PictureSpan, PictureNumber], ...] = ()

    @property
    def write_slot(self) -> int:
        return self.active.slots[self.write_index]

    @property
    def batch_index(self) -> int:
        """Return the request's batch index, to find its last sampled tokens in the runner. It is a
        working slot's id, because no two allocations share one."""
        return self.active.slots[0]

    @property
    def decodes(self) -> bool:
        """True if this computes one token of an answer decoded on this engine, without a
        checkpoint. So it may run in a CUDA graph for decode."""
        one = self.num_sampled > 0 and self.stop - self.start == 1
        plain = not self.checkpoints and not self.turns_apart
        return one and self.active.answers_here and plain

    @property
    def turns_apart(self) -> bool:
        """True if a token, or the draft layer's entry of the first one, has rotary positions of its
        own. Else they are the positions plus the rope delta."""
        pictures = self.request.pictures
        # A row with drafts begins behind all pictures. The entry of its first token is like text's.
        return pictures is not None and self.start < pictures.end + (not self.drafts)

    @property
    def live(self) -> bool:
        """True if the request still runs on the allocation used in this forward."""
        state = self.request.state
        return isinstance(state, Active) and state.allocation is self.active.allocation


@dataclass(frozen=True)
class AnswerRows:
    """The answers without drafts in one forward: each computes one token and samples the next.

    Columns have shape [n], one row for each answer. holders: number of each row's sequence, as in
    ProgressTable. row_limits: token capacity of the allocation. indices: position of the sampled
    token in the answer. is_last: True if no token is wanted after it.
    """

    requests: Sequence[Request]
    batch_indices: BatchIndices
    holders: NDArray[np.int64]
    tokens: NextTokens
    row_limits: Ints
    indices: Ints
    is_last: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.batch_indices)

    def live(self, progress: ProgressTable) -> NDArray[np.bool_]:
        """Return bool [n]: True if the row's request still runs on this forward's allocation."""
        still: NDArray[np.bool_] = progress.holders[self.batch_indices] == self.holders
        return still

    def requests_where(self, rows: NDArray[np.bool_]) -> list[Request]:
        """Return the requests of the rows with True. rows: bool [n]."""
        return [self.requests[row] for row in rows.nonzero()[0].tolist()]

    def take(self, rows: NDArray[np.intp]) -> "AnswerRows":
        return AnswerRows(
            [self.requests[row] for row in rows.tolist()],
            self.batch_indices[rows],
            self.holders[rows],
            self.tokens.take(rows),
            self.row_limits[rows],
            self.indices[rows],
            self.is_last[rows],
        )

    def sequences(self) -> list[ScheduledSequence]:
        """Return each row as a ScheduledSequence. REQUIRES: all rows are live."""
        found = []
        for row, request in enumerate(self.requests):
            assert isinstance(request.state, Active)
            start, read, write = (
                int(column[row])
                for column in (self.tokens.starts, self.tokens.read_index, self.tokens.write_index)
            )
            found.append(
                ScheduledSequence(request, request.state, start, start + 1, read, write, 1)
            )
        return found


@dataclass(frozen=True)
class ScheduledForward:
    """The rows of one forward: answers first, then answers with drafts, then prompts."""

    answers: AnswerRows
    prompts: Sequence[ScheduledSequence]
    drafted: Sequence[ScheduledSequence] = ()

    def __len__(self) -> int:
        return len(self.answers) + len(self.drafted) + len(self.prompts)

    @property
    def sequences(self) -> list[ScheduledSequence]:
        """The forward's parts after the rows of `answers`, in the order of the rows: answers with
        drafts, then prompts."""
        return [*self.drafted, *self.prompts]

    @property
    def shape(self) -> StepShape:
        """Return the shape of the forward's decode part: the numbers of answers without and with
        drafts, and the longest row."""
        lengths = [1 + len(item.drafts) for item in self.drafted if item.drafts]
        plain = len(self.answers) + len(self.drafted) - len(lengths)
        return StepShape(plain, len(lengths), max(lengths, default=1))

    @property
    def prompt_tokens(self) -> int:
        """Number of prompt tokens computed by the forward."""
        return sum(item.stop - item.start for item in self.prompts if not item.decodes)

    def live_sequences(self, progress: ProgressTable) -> list[ScheduledSequence]:
        """Return one ScheduledSequence for each request still running."""
        live = self.answers.take(self.answers.live(progress).nonzero()[0])
        return live.sequences() + [item for item in self.sequences if item.live]


_DECODES, _AT_INDEX, _VERIFIES = RowFlag.DECODES.value, AT_INDEX.value, RowFlag.VERIFIES.value
_DRAFTS_AT_INDEX = RowFlag.DRAFTS_AT_INDEX.value
_MAX_ROWS = 1
"""Most sampled tokens stored in the runner for a sequence: a forward samples one for it."""


class _Changes:
    """Changes of one plan against the runner's state: sequences removed, sequences added, and new
    pages."""

    def __init__(self) -> None:
        self.left: list[int] = []
        self.joined: list[JoinedSequence] = []
        self.new_pages: list[NewPages] = []


class ForwardPlanner:
    def __init__(self, progress: ProgressTable, ids_before: int = 0) -> None:
        """progress: table of the running sequences. ids_before: number of token ids that the model
        needs from before a row."""
        batch_indices = len(progress.holders)
        self._ids_before = ids_before
        self._progress = progress
        self._number = 0
        self._joined: NDArray[np.int64] = np.zeros(batch_indices, dtype=np.int64)
        """Number of the sequence known to the runner, by batch index; 0: none."""
        self._joined_count = 0
        self._row_limits: Ints = np.zeros(batch_indices, dtype=np.int32)
        """Token capacity of the pages known to the runner for the sequence, by batch index."""

    def plan(
        self, forward: ScheduledForward, copies: tuple[CopyOp, ...], folds: tuple[Fold, ...] = ()
    ) -> ForwardPlan:
        """Return the next plan; it must be launched. copies: cache copies before the forward.
        folds: recurrent states to store after accepted drafts. REQUIRES: no two rows share a batch
        index."""
        answers = forward.answers
        changes = _Changes()
        columns: Ints = np.empty((COLUMNS, len(forward)), dtype=np.int32)
        first = len(answers)
        tokens = self._answer_rows(answers, columns[:, :first], changes)
        checkpoints: list[RowCheckpoint] = []
        scored: list[ScoredRow] = []
        guesses: list[Guess] = []
        first_guesses: list[Guess] = []
        rope: list[RowPositions] = []
        pictures: list[PictureRows] = []
        for row, item in enumerate(forward.sequences, first):
            tokens += self._sequence_row(item, columns[:, row], changes)
            scored += _scored(row, item)
            if item.guesses:
                guesses.append(Guess(row, item.guesses))
            if item.first_guesses:
                first_guesses.append(Guess(row, item.first_guesses))
            for planned, slot in item.checkpoints:
                checkpoints.append(RowCheckpoint(row, planned.position, slot))
            if item.turns_apart and item.request.pictures is not None:
                positions = item.request.pictures.rope_positions(item.start, item.stop)
                rope.append(RowPositions(row, positions))
                pictures += [
                    PictureRows(row, span.token, number, span.first, span.count)
                    for span, number in item.pictures
                ]
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
            rope=tuple(rope),
            pictures=tuple(pictures),
        )

    def stores_alone(self, copies: tuple[CopyOp, ...], folds: tuple[Fold, ...] = ()) -> ForwardPlan:
        """Return the next plan, with copies and folds (states stored after accepted drafts) but no
        new computation. It must be launched too."""
        return ForwardPlan(self._next_number(), copies, tuple(self._leave()), folds=folds)

    def _next_number(self) -> int:
        number = self._number
        self._number += 1
        return number

    def _answer_rows(self, answers: AnswerRows, columns: Ints, changes: _Changes) -> list[int]:
        """Fill the columns of the answers without drafts. Return the input tokens of rows without a
        token in the runner."""
        batch_indices, tokens = answers.batch_indices, answers.tokens
        changed = (self._joined[batch_indices] != answers.holders) | (
            self._row_limits[batch_indices] != answers.row_limits
        )
        for row in changed.nonzero()[0].tolist():
            start = int(tokens.starts[row])
            self._follow(answers.requests[row], int(batch_indices[row]), start, changes)
        at_index = tokens.sampled_before
        columns[0], columns[1], columns[2] = batch_indices, tokens.starts, 1
        columns[3], columns[4] = tokens.read_index, tokens.write_index
        columns[5], columns[6] = answers.row_limits, 1
        columns[7] = at_index * _AT_INDEX + _DECODES
        known: list[int] = []
        for row in (~at_index).nonzero()[0].tolist():
            start = int(tokens.starts[row])
            known += answers.requests[row].token_slice(start, start + 1)
        return known

    def _sequence_row(self, item: ScheduledSequence, column: Ints, changes: _Changes) -> list[int]:
        """Fill the column of one sequence's row; return the row's input tokens."""
        batch_index = item.batch_index
        self._follow(item.request, batch_index, item.start, changes)
        flags = _VERIFIES if item.drafts else _DECODES if item.decodes else 0
        flags += item.drafts_at_index * _DRAFTS_AT_INDEX
        column[:] = (
            *(batch_index, item.start, item.stop - item.start, item.read_index, item.write_index),
            *(self._row_limits[batch_index], item.num_sampled, flags),
        )
        known = item.request.token_slice(item.start, item.stop - len(item.drafts))
        return known + list(item.drafts)

    def _follow(self, request: Request, batch_index: int, start: int, changes: _Changes) -> None:
        """Add the request's sequence and its pages to the plan's changes, as far as the runner
        lacks them. start: position of its row's first token."""
        state = request.state
        assert isinstance(state, Active)
        if self._joined[batch_index] != state.progress.number:
            if self._joined[batch_index]:
                changes.left.append(batch_index)
            else:
                self._joined_count += 1
            joined = _joined(batch_index, state.slots, request)
            if self._ids_before:
                ids = request.token_slice(max(start - self._ids_before, 0), start)
                joined = replace(joined, ids_before=tuple(ids))
            changes.joined.append(joined)
            self._joined[batch_index], self._row_limits[batch_index] = state.progress.number, 0
        limit = state.allocation.capacity_tokens
        if limit != self._row_limits[batch_index]:
            pages = state.allocation.pages[self._row_limits[batch_index] // PAGE_TOKENS :]
            changes.new_pages.append(NewPages(batch_index, pages))
            self._row_limits[batch_index] = limit

    def _leave(self) -> list[int]:
        """Remove the record of ended sequences; return their batch indices."""
        over = (self._joined != 0) & (self._joined != self._progress.holders)
        gone: BatchIndices = over.nonzero()[0]
        self._joined[gone] = 0
        self._joined_count -= len(gone)
        found: list[int] = gone.tolist()
        return found


def _scored(row: int, item: ScheduledSequence) -> list[ScoredRow]:
    """Return the row's part of a prompt scoring. Return no part if the request is not scored, or no
    prompt token follows the row's tokens."""
    scoring = item.request.scoring
    count = 0 if scoring is None else scoring.count(item.start, item.stop)
    if scoring is None or not count:
        return []
    return [ScoredRow(row, count, scoring.top, int(scoring.tokens[item.start + count]))]


def _joined(batch_index: int, slots: tuple[int, ...], request: Request) -> JoinedSequence:
    """Return the description of a new sequence for the runner. All tokens sampled before are in the
    request's output: none is in flight."""
    sampling = request.sampling
    before = None
    if sampling.adjusts:
        before = TokensBefore.of(sampling, request.prompt, request.output)
    delta = 0 if request.pictures is None else request.pictures.layout.delta
    return JoinedSequence(batch_index, slots, _MAX_ROWS, sampling, before, delta)
