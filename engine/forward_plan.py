"""A forward as plain data: a runner's input, as changes against the data kept by the runner.

The engine makes plans (scheduling/scheduled_forward.py). A runner is in this process or another. It
keeps the pages, slots and sampling parameters of every joined sequence. It also keeps the last
sampled tokens of every batch index (runner/rows.py). Plain values: any thread, any process.
encode() and decode_plan() convert plans to bytes and back.

A sequence has one *batch index* in the runner, its place for sampled tokens. Token, position and
length of a row are either numbers from the host, or stored at the batch index by the forward
before. In the second case the row carries an upper bound instead. So forward n+1 can be planned
before the results of n are known.

Invariants:
1. Plans are numbered 0, 1, 2, ... without a gap; a runner rejects any other number than the next.
2. The folds run first, then the copies in their order. They run after every forward of a lower
   number and before this plan's forward.
3. Within a plan, a sequence leaves, joins, grows and is computed in this order. A batch index is
   free before it is joined again. Pages are only ever added to a sequence.
4. No row reads a slot written by another row of the plan; a row stays below its row limit.
5. A row that verifies drafts writes no slot: the number of accepted tokens is known only when it
   completes. A fold in a later plan stores the state after these tokens, once. It comes before any
   row or copy that reads the slot.
"""

import struct
from collections.abc import Sized
from dataclasses import dataclass, field, replace
from enum import IntEnum, IntFlag

import msgspec
import numpy as np
from numpy.typing import NDArray

from tasuki.engine.pictures.row_store import PictureNumber
from tasuki.model.ops.sampling.logit_adjustments import TokensBefore
from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.pycache.arena import CopyKind, CopyOp

Ints = NDArray[np.int32]


class PlanError(Exception):
    """A plan impossible for the runner, because it and the engine no longer agree. Restart the
    node."""


class PlanGap(PlanError):
    """A plan with another number than the next one: an earlier plan is missing, or came twice."""


class UnknownBatchIndex(PlanError):
    """A plan names a batch index without a joined sequence."""


class RowFlag(IntFlag):
    """Flags of a row. TOKENS_AT_INDEX, POSITION_AT_INDEX, LENGTH_AT_INDEX: the value is stored in
    the runner at the row's batch index. DECODES: the row is one token of an answer given by this
    engine, so it may run in a graph of such rows. VERIFIES: drafts follow the row's first token.
    One token is sampled after each, as long as the drafts before equal the sampled tokens.
    DRAFTS_AT_INDEX: the drafts are the first ones stored at the batch index by a Guess of an
    earlier plan. The plan's tokens do not contain them."""

    TOKENS_AT_INDEX = 1
    POSITION_AT_INDEX = 2
    LENGTH_AT_INDEX = 4
    DECODES = 8
    VERIFIES = 16
    DRAFTS_AT_INDEX = 32


AT_INDEX = RowFlag.TOKENS_AT_INDEX | RowFlag.POSITION_AT_INDEX | RowFlag.LENGTH_AT_INDEX


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
    """A sequence new to the runner. slots: ids of its working slots; rows name the slots to read
    and write by index. max_rows: most sampled tokens ever stored at its batch index. sampling: a
    runner needs only temperature, top_k, top_p and seed, unless it adjusts logits or wants
    top_logprobs. Only needed values are encoded. before: the tokens needed for the logit
    adjustments, None without adjustments; later sampled tokens follow them.
    rope_delta: rotary position minus position of a token behind all pictures; 0 for text.
    ids_before: token ids right before the sequence's first row, if the model needs any."""

    batch_index: int
    slots: tuple[int, ...]
    max_rows: int
    sampling: SamplingParams
    before: TokensBefore | None = None
    rope_delta: int = 0
    ids_before: tuple[int, ...] = ()


@dataclass(frozen=True)
class NewPages:
    """Ids of pages appended to the pages of the sequence at the batch index."""

    batch_index: int
    pages: Ints


@dataclass(frozen=True)
class RowCheckpoint:
    """A request to store the state after `position` tokens of the plan's row in `slot` too."""

    row: int
    position: int
    slot: int


@dataclass(frozen=True)
class ScoredRow:
    """A request for logprobs of the token after each of the first `count` tokens of the plan's row.
    Each comes with the `top` likeliest tokens. following: the token after the last of them."""

    row: int
    count: int
    top: int
    following: int


@dataclass(frozen=True)
class Fold:
    """A request to store the state after the first `count` tokens of the last verified row at the
    batch index. The state goes to the slot named by this row."""

    batch_index: int
    count: int


@dataclass(frozen=True)
class Guess:
    """A request for `count` proposed tokens from the model's draft layer, for the sequence of the
    plan's row. Later forwards of these tokens overwrite the data written here."""

    row: int
    count: int


@dataclass(frozen=True)
class RowPositions:
    """Rotary positions of the plan's row. positions [3, 1 + tokens] int32: on the axes frames, rows
    and columns, of the row's tokens and of the one before them (-1 before the first). A row without
    any has its positions plus its sequence's rope_delta."""

    row: int
    positions: Ints


@dataclass(frozen=True)
class PictureRows:
    """Rows of a picture in place of embeddings. row: of the plan. token: index of the first of
    their tokens in the row. picture: number of the stored rows. first: the first of these used.
    count: rows."""

    row: int
    token: int
    picture: PictureNumber
    first: int
    count: int


@dataclass(frozen=True)
class PlanRows:
    """The rows of the forward: columns [8, n] int32, one row for each sequence. positions: position
    of the row's first token. lengths: number of tokens. Both are upper bounds if the flags place
    the value at the batch index. row_limits: number of tokens held by the sequence's pages.
    num_sampled: number of tokens to sample after the last one. For a row with drafts to verify it
    is a maximum, with one token after each."""

    columns: Ints

    def _column(self, column: _Column) -> Ints:
        found: Ints = self.columns[column]
        return found

    def __len__(self) -> int:
        return len(self.batch_indices)

    @property
    def batch_indices(self) -> Ints:
        return self._column(_Column.LANE)

    @property
    def lengths(self) -> Ints:
        return self._column(_Column.LENGTH)

    @property
    def flags(self) -> Ints:
        return self._column(_Column.FLAGS)


def plan_rows(numbers: list[int]) -> PlanRows:
    """Make rows from a flat list of eight numbers for each row, in the order of the columns."""
    columns = np.array(numbers, dtype=np.int32).reshape(-1, COLUMNS).T
    return PlanRows(np.ascontiguousarray(columns))


@dataclass(frozen=True)
class ForwardPlan:
    """One forward for a runner. tokens: all tokens not stored at a batch index, row by row. left:
    batch indices of ended sequences. guesses: proposals after the last token sampled by the row.
    first_guesses: proposals after the row's first token. They are made before the forward, from the
    hidden state carried by the slot to read. They are all the drafts of a verifying row without
    drafts yet, and replace its tokens. rope, pictures: of rows of prompts with pictures. A plan
    without rows only runs its copies and folds."""

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
    rope: tuple[RowPositions, ...] = ()
    pictures: tuple[PictureRows, ...] = ()

    @property
    def has_pictures(self) -> bool:
        """True if a sequence with pictures joins, or has a row of its prompt here."""
        deltas = any(item.rope_delta for item in self.joined)
        return bool(self.rope or self.pictures) or deltas

    @property
    def has_extras(self) -> bool:
        """True if the encoded plan has its last part: for pictures, or for ids before a row."""
        return self.has_pictures or any(item.ids_before for item in self.joined)

    def encode(self) -> bytes:
        counted: tuple[Sized, ...] = (
            *(self.copies, self.left, self.joined, self.new_pages, self.rows, self.tokens),
            *(self.checkpoints, self.scored, self.folds, self.guesses, self.first_guesses),
        )
        pages = [item.pages for item in self.new_pages]
        lists: list[int] = [number for copy in self.copies for number in copy]
        lists += self.left
        for item in self.new_pages:
            lists += (item.batch_index, len(item.pages))
        for mark in self.checkpoints:
            lists += (mark.row, mark.position, mark.slot)
        for row in self.scored:
            lists += (row.row, row.count, row.top, row.following)
        for fold in self.folds:
            lists += (fold.batch_index, fold.count)
        for guess in self.guesses + self.first_guesses:
            lists += (guess.row, guess.count)
        parts = [
            _HEAD.pack(self.number, *map(len, counted)),
            np.array(lists, dtype=_WIRE).tobytes(),
            self.rows.columns.astype(_WIRE, copy=False).tobytes(),
            self.tokens.astype(_WIRE, copy=False).tobytes(),
            *(ids.astype(_WIRE, copy=False).tobytes() for ids in pages),
            *(_encode_joined(item) for item in self.joined),
        ]
        if self.has_extras:
            parts.append(_encode_extras(self))
        return b"".join(parts)


_WIRE = np.dtype("<i4")
_HEAD = struct.Struct("<Q11I")
_JOINED = struct.Struct("<iIIddiIIIII")
_EXTRAS = struct.Struct("<4I")
_NUMBERS = np.dtype("<i8")


def _encode_joined(item: JoinedSequence) -> bytes:
    sampling, before = item.sampling, item.before or _NOTHING_BEFORE
    # The seed is encoded separately, because it may be wider than any number of msgpack's.
    rest = b""
    if sampling.adjusts or sampling.top_logprobs:
        rest = msgspec.msgpack.encode(replace(sampling, seed=0))
    seed = sampling.seed.to_bytes(sampling.seed.bit_length() // 8 + 1, "little", signed=True)
    fixed = _JOINED.pack(
        *(item.batch_index, len(item.slots), item.max_rows),
        *(sampling.temperature, sampling.top_p, sampling.top_k),
        *(len(seed), len(rest), len(before.prompt), len(before.output), before.begins),
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


def _encode_extras(plan: ForwardPlan) -> bytes:
    """Return the last part of a plan with pictures, or with ids before a row. Other plans have
    none."""
    deltas = [(i, item.rope_delta) for i, item in enumerate(plan.joined) if item.rope_delta]
    before = [(i, item.ids_before) for i, item in enumerate(plan.joined) if item.ids_before]
    numbers = [number for delta in deltas for number in delta]
    for item in plan.rope:
        numbers += (item.row, item.positions.shape[1])
    for rows in plan.pictures:
        numbers += (rows.row, rows.token, rows.first, rows.count)
    for place, ids in before:
        numbers += (place, len(ids))
    parts = [
        _EXTRAS.pack(len(deltas), len(plan.rope), len(plan.pictures), len(before)),
        np.array(numbers, dtype=_WIRE).tobytes(),
        np.array([rows.picture for rows in plan.pictures], dtype=_NUMBERS).tobytes(),
        *(item.positions.astype(_WIRE, copy=False).tobytes() for item in plan.rope),
        *(np.array(ids, dtype=_WIRE).tobytes() for _, ids in before),
    ]
    return b"".join(parts)


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
        segment = self._data[self._at : self._at + count]
        if len(segment) != count:
            raise PlanError(f"a plan of {len(self._data)} bytes ends too early")
        self._at += count
        return segment

    def joined(self) -> JoinedSequence:
        fixed = _JOINED.unpack(self.bytes(_JOINED.size))
        batch_index, slots, max_rows, temperature, top_p, top_k, *sizes = fixed
        seed, rest, prompt, output, begins = sizes
        ids = tuple(self.ints(slots).tolist())
        number = int.from_bytes(self.bytes(seed), "little", signed=True)
        sampling = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, seed=number)
        if rest:
            sampling = replace(self._params(rest), seed=number)
        before = TokensBefore(self.ints(prompt), self.ints(output), begins)
        return JoinedSequence(
            batch_index, ids, max_rows, sampling, before if sampling.adjusts else None
        )

    def _params(self, count: int) -> SamplingParams:
        try:
            return msgspec.msgpack.decode(self.bytes(count), type=SamplingParams)
        except msgspec.MsgspecError as error:
            raise PlanError(f"a plan's sampling cannot be read: {error}") from error

    @property
    def is_over(self) -> bool:
        return self._at == len(self._data)

    def with_extras(self, plan: ForwardPlan) -> ForwardPlan:
        """Return the plan with its last part; the plan itself without that part."""
        if self.is_over:
            return plan
        deltas, ropes, pictures, before = _EXTRAS.unpack(self.bytes(_EXTRAS.size))
        joined = list(plan.joined)
        for place, delta in self.tuples(deltas, 2):
            if not 0 <= place < len(joined):
                raise PlanError(f"plan {plan.number} gives a rope delta to no joined sequence")
            joined[place] = replace(joined[place], rope_delta=delta)
        sizes, rows = self.tuples(ropes, 2), self.tuples(pictures, 4)
        contexts = self.tuples(before, 2)
        numbers = np.frombuffer(self.bytes(_NUMBERS.itemsize * pictures), dtype=_NUMBERS).tolist()
        rope = tuple(RowPositions(row, self.ints(3 * n).reshape(3, n)) for row, n in sizes)
        for place, count in contexts:
            if not 0 <= place < len(joined):
                raise PlanError(f"plan {plan.number} gives ids to no joined sequence")
            ids = tuple(self.ints(count).tolist())
            joined[place] = replace(joined[place], ids_before=ids)
        return replace(
            plan,
            joined=tuple(joined),
            rope=rope,
            pictures=tuple(
                PictureRows(row, token, PictureNumber(number), first, count)
                for (row, token, first, count), number in zip(rows, numbers, strict=True)
            ),
        )

    def end(self) -> None:
        if not self.is_over:
            raise PlanError(f"a plan of {len(self._data)} bytes should end after {self._at}")


def decode_plan(data: bytes) -> ForwardPlan:
    """Return the plan encoded in the bytes. Raises PlanError for other bytes."""
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
    new_pages = tuple(NewPages(batch_index, reader.ints(count)) for batch_index, count in sizes)
    sequences = tuple(reader.joined() for _ in range(joined))
    plan = ForwardPlan(
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
    plan = reader.with_extras(plan)
    reader.end()
    return plan
