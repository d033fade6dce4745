"""A forward as plain data: what a runner needs to compute it, as changes against what it keeps.

The engine makes plans (scheduling/forward_planner.py); a runner, here or in another process, keeps
of every sequence that joined its pages, slots and sampling, and of every lane the tokens drawn last
(runner/rows.py). Plain values: any thread, any process; encode() and decode_plan() are
the bytes between two.

A *lane* is where a runner keeps what it drew for a sequence. Token, position and length of a row
are numbers of the host's, or are on the lane, where the forward before puts them: then the row
carries an upper bound instead, so that the forward n+1 can be planned with nothing of n known.

Invariants:
1. Plans are numbered 0, 1, 2, ... without a gap; a runner refuses any other than the next one.
2. The folds run first, then the copies in their order, behind every forward of a lower number and
   before this one's.
3. A sequence leaves, joins, grows and is computed in this order within a plan. A lane that joins
   again has left before. Pages are only ever added to a sequence.
4. No row reads a slot that another row of the plan writes; a row stays below its row limit.
5. A row that verifies drafts writes no slot: how many of its tokens hold shows when it lands. A
   fold in a later plan stores the state behind those, once, and comes before any row or copy that
   reads the slot.
"""

import struct
from dataclasses import dataclass, field, replace
from enum import IntEnum, IntFlag

import msgspec
import numpy as np
from numpy.typing import NDArray

from tasuki.model.ops.sampling.logit_adjustments import TokensBefore
from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.pycache.arena import CopyKind, CopyOp

Ints = NDArray[np.int32]


class PlanError(Exception):
    """A plan that a runner cannot run: it and the engine no longer agree. Restart the node."""


class PlanGap(PlanError):
    """A plan's number is not the next one: some plan before it is missing, or came twice."""


class UnknownLane(PlanError):
    """A plan names a lane that no sequence has joined."""


class RowFlag(IntFlag):
    """ON_LANE: that value of the row is the lane's. DECODES: one token of an answer that this
    engine gives, so that it may run in a graph of such rows. VERIFIES: behind that token there are
    drafts; a token is drawn behind each as far as the drafts before it are what was drawn.
    DRAFTS_ON_LANE: these are the first of those that a Guess of an earlier plan left on the lane,
    and stand for nothing among the plan's tokens."""

    TOKENS_ON_LANE = 1
    POSITION_ON_LANE = 2
    LENGTH_ON_LANE = 4
    DECODES = 8
    VERIFIES = 16
    DRAFTS_ON_LANE = 32


ON_LANE = RowFlag.TOKENS_ON_LANE | RowFlag.POSITION_ON_LANE | RowFlag.LENGTH_ON_LANE


class _Column(IntEnum):
    LANE = 0
    POSITION = 1
    LENGTH = 2
    READ_INDEX = 3
    WRITE_INDEX = 4
    ROW_LIMIT = 5
    NUM_SAMPLED = 6
    FLAGS = 7


COLUMNS = len(_Column)


@dataclass(frozen=True)
class JoinedSequence:
    """slots: its working slots, of which rows name the one read and the one written by index.
    max_rows: most tokens that its lane ever holds. sampling: where it neither adjusts logits nor
    wants top_logprobs a runner reads temperature, top_k, top_p and seed, and only those are
    encoded. before: what its adjustments depend on, None where it has none; what is drawn on the
    lane follows it."""

    lane: int
    slots: tuple[int, ...]
    max_rows: int
    sampling: SamplingParams
    before: TokensBefore | None = None


@dataclass(frozen=True)
class NewPages:
    """Ids of the pages that follow those which the lane's sequence had."""

    lane: int
    pages: Ints


@dataclass(frozen=True)
class RowCheckpoint:
    """The state after `position` tokens of the plan's row also goes to `slot`."""

    row: int
    position: int
    slot: int


@dataclass(frozen=True)
class ScoredRow:
    """Of the first `count` tokens of the plan's row it is computed how likely the token behind each
    was, with so many of the likeliest beside it (top). following: the token behind the last of
    them."""

    row: int
    count: int
    top: int
    following: int


@dataclass(frozen=True)
class Fold:
    """The state behind the first `count` tokens of the row that the lane's sequence verified last
    goes to the slot that this row named."""

    lane: int
    count: int


@dataclass(frozen=True)
class Guess:
    """The model's draft layer is to propose so many tokens of the plan's row. What it writes of
    them is written over by the forwards that compute them."""

    row: int
    count: int


@dataclass(frozen=True)
class PlanRows:
    """What the forward computes: columns [8, n] int32, a row a sequence. positions: of the first
    token. lengths: tokens. Both are upper bounds where the flags say that the value is on the
    lane. row_limits: tokens that the sequence's pages hold. num_sampled: tokens to draw behind the
    last one; of a row that verifies drafts at most so many, one behind each token."""

    columns: Ints

    def _column(self, column: _Column) -> Ints:
        found: Ints = self.columns[column]
        return found

    def __len__(self) -> int:
        return len(self.lanes)

    @property
    def lanes(self) -> Ints:
        return self._column(_Column.LANE)

    @property
    def lengths(self) -> Ints:
        return self._column(_Column.LENGTH)

    @property
    def flags(self) -> Ints:
        return self._column(_Column.FLAGS)


def plan_rows(numbers: list[int]) -> PlanRows:
    """From eight numbers a row, in the order of the columns."""
    columns = np.array(numbers, dtype=np.int32).reshape(-1, COLUMNS).T
    return PlanRows(np.ascontiguousarray(columns))


@dataclass(frozen=True)
class ForwardPlan:
    """tokens: those of the rows whose tokens are not on a lane, row by row. left: lanes. guesses:
    behind the last token that the row draws. first_guesses: behind the row's first token, before
    the forward and from what the slot carries that the row reads; all drafts of a row that verifies
    some which nobody has made yet, in the place of its tokens. A plan without rows only runs its
    copies."""

    number: int
    copies: tuple[CopyOp, ...] = ()
    left: tuple[int, ...] = ()
    joined: tuple[JoinedSequence, ...] = ()
    new_pages: tuple[NewPages, ...] = ()
    rows: PlanRows = field(default_factory=lambda: plan_rows([]))
    tokens: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int32))
    checkpoints: tuple[RowCheckpoint, ...] = ()
    scored: tuple[ScoredRow, ...] = ()
    folds: tuple[Fold, ...] = ()
    guesses: tuple[Guess, ...] = ()
    first_guesses: tuple[Guess, ...] = ()

    def encode(self) -> bytes:
        counts = (
            len(self.copies),
            len(self.left),
            len(self.joined),
            len(self.new_pages),
            len(self.rows),
            len(self.tokens),
            len(self.checkpoints),
            len(self.scored),
            len(self.folds),
            len(self.guesses),
            len(self.first_guesses),
        )
        pages = [item.pages for item in self.new_pages]
        lists: list[int] = [number for copy in self.copies for number in copy]
        lists += self.left
        for item in self.new_pages:
            lists += (item.lane, len(item.pages))
        for mark in self.checkpoints:
            lists += (mark.row, mark.position, mark.slot)
        for row in self.scored:
            lists += (row.row, row.count, row.top, row.following)
        for fold in self.folds:
            lists += (fold.lane, fold.count)
        for guess in self.guesses + self.first_guesses:
            lists += (guess.row, guess.count)
        parts = [
            _HEAD.pack(self.number, *counts),
            np.array(lists, dtype=_WIRE).tobytes(),
            self.rows.columns.astype(_WIRE, copy=False).tobytes(),
            self.tokens.astype(_WIRE, copy=False).tobytes(),
            *(ids.astype(_WIRE, copy=False).tobytes() for ids in pages),
            *(_encode_joined(item) for item in self.joined),
        ]
        return b"".join(parts)


_WIRE = np.dtype("<i4")
_HEAD = struct.Struct("<Q11I")
_JOINED = struct.Struct("<iIIddiIIIII")


def _encode_joined(item: JoinedSequence) -> bytes:
    sampling, before = item.sampling, item.before or _NOTHING_BEFORE
    # Apart, since a seed may be wider than any number of msgpack's.
    rest = b""
    if sampling.adjusts or sampling.top_logprobs:
        rest = msgspec.msgpack.encode(replace(sampling, seed=0))
    seed = sampling.seed.to_bytes(sampling.seed.bit_length() // 8 + 1, "little", signed=True)
    fixed = _JOINED.pack(
        item.lane,
        len(item.slots),
        item.max_rows,
        sampling.temperature,
        sampling.top_p,
        sampling.top_k,
        len(seed),
        len(rest),
        len(before.prompt),
        len(before.output),
        before.begins,
    )
    lists = (before.prompt, before.output)
    return b"".join(
        (
            fixed,
            struct.pack(f"<{len(item.slots)}i", *item.slots),
            seed,
            rest,
            *(ids.astype(_WIRE, copy=False).tobytes() for ids in lists),
        )
    )


_NOTHING_BEFORE = TokensBefore(np.empty(0, dtype=np.int32), np.empty(0, dtype=np.int32))


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def ints(self, count: int) -> Ints:
        return np.frombuffer(self.bytes(4 * count), dtype=_WIRE)

    def tuples(self, count: int, length: int) -> list[list[int]]:
        found: list[list[int]] = self.ints(length * count).reshape(-1, length).tolist()
        return found

    def bytes(self, count: int) -> bytes:
        piece = self._data[self._at : self._at + count]
        if len(piece) != count:
            raise PlanError(f"a plan of {len(self._data)} bytes ends too early")
        self._at += count
        return piece

    def joined(self) -> JoinedSequence:
        fixed = _JOINED.unpack(self.bytes(_JOINED.size))
        lane, slots, max_rows, temperature, top_p, top_k, seed, rest, prompt, output, begins = fixed
        ids = tuple(self.ints(slots).tolist())
        number = int.from_bytes(self.bytes(seed), "little", signed=True)
        sampling = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, seed=number)
        if rest:
            sampling = replace(self._params(rest), seed=number)
        before = TokensBefore(self.ints(prompt), self.ints(output), begins)
        return JoinedSequence(lane, ids, max_rows, sampling, before if sampling.adjusts else None)

    def _params(self, count: int) -> SamplingParams:
        try:
            return msgspec.msgpack.decode(self.bytes(count), type=SamplingParams)
        except msgspec.MsgspecError as error:
            raise PlanError(f"a plan's sampling cannot be read: {error}") from error

    def end(self) -> None:
        if self._at != len(self._data):
            raise PlanError(f"a plan of {len(self._data)} bytes should end after {self._at}")


def decode_plan(data: bytes) -> ForwardPlan:
    """What encode() was called on. Raises PlanError where the bytes are not a plan's."""
    reader = _Reader(data)
    number, copies, left, joined, grown, rows, tokens, marks, scored, folds, guesses, first = (
        _HEAD.unpack(reader.bytes(_HEAD.size))
    )
    copied = reader.tuples(copies, 3)
    gone = reader.ints(left).tolist()
    sizes = reader.tuples(grown, 2)
    marked = reader.tuples(marks, 3)
    scores = reader.tuples(scored, 4)
    folded = reader.tuples(folds, 2)
    guessed = reader.tuples(guesses, 2)
    guessed_first = reader.tuples(first, 2)
    columns = reader.ints(COLUMNS * rows).reshape(COLUMNS, -1)
    ids = reader.ints(tokens)
    new_pages = tuple(NewPages(lane, reader.ints(count)) for lane, count in sizes)
    sequences = tuple(reader.joined() for _ in range(joined))
    reader.end()
    return ForwardPlan(
        number=number,
        copies=tuple(
            CopyOp(CopyKind(kind), source, destination) for kind, source, destination in copied
        ),
        left=tuple(gone),
        joined=sequences,
        new_pages=new_pages,
        rows=PlanRows(columns),
        tokens=ids,
        checkpoints=tuple(RowCheckpoint(*mark) for mark in marked),
        scored=tuple(ScoredRow(*item) for item in scores),
        folds=tuple(Fold(*item) for item in folded),
        guesses=tuple(Guess(*item) for item in guessed),
        first_guesses=tuple(Guess(*item) for item in guessed_first),
    )
