"""One forward: its rows as tensors, their phase, hooks between its layers, exchange among its
ranks.

Batch: the tokens, and the pages and slots read and written for them. DecodeBatch and VerifyBatch
are at fixed addresses, read by a captured graph every time. Phase: the use of a forward's rows. It
decides their precision if weights are quantised.

LayerHooks: the interface of the step counter and the layer barrier. They watch or block a forward
between its layers. Hooks run on the thread of the forward and must not start another one.

Reduce, Gather: the exchange among ranks sharing a model. Ranks add up at the end of `project` and
of `feed_forward`, twice a layer. They join their parts of the logits side by side. Each rank
computes the rest of a layer alone, on its own heads and its own part of every inner width.

Does not know layers or memory.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate
from typing import Protocol

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class DecodeBatch:
    """One token of each of B sequences. Only the first rows[0] rows are valid. All are int32 on one
    device.

    positions [B]: position of each token. context_lens [B]: positions + 1, the number of tokens
    seen by the query. page_table [B, pages]: page ids, by page number in the sequence; entries
    beyond a context are never read. read_slots, write_slots [B]: slots of the state before and
    after the token; no row reads a slot written by another. rows [1]: number of valid rows. Rows
    past rows[0] may hold anything: operators read and write nothing of the arena for them.
    rope_deltas [B]: rotary position minus position, of sequences with pictures; None: all are 0.
    """

    positions: Tensor
    context_lens: Tensor
    page_table: Tensor
    read_slots: Tensor
    write_slots: Tensor
    rows: Tensor
    rope_deltas: Tensor | None = None

    @property
    def size(self) -> int:
        return self.positions.shape[0]


@dataclass(frozen=True)
class VerifyBatch:
    """T tokens of each of B sequences: one token of the answer, then its drafts. The first
    counts[i] tokens of sequence i are valid. The states after them are not written. All are int32
    on one device.

    positions [B * T]: position of each token, sequence by sequence; below 0 for tokens that are not
    valid. owners [B * T]: sequence index of each token. token_rows [1]: T times rows[0]. counts
    [B]: valid tokens per sequence, 1 to T. context_lens [B]: number of tokens seen by the query of
    a sequence's last token. page_table [B, pages] and rows [1]: see DecodeBatch. read_slots [B]:
    slots of the state before the tokens; no row reads a slot written by another row of the same
    plan.

    turn [1], 0 or 1: alternates between successive forwards, and selects the buffer of their
    inputs. The forward first advances each row's state over the accepted tokens of the previous
    forward (a fold). fold_counts [B]: number of these tokens; 0: none, then the fold slot is the
    read slot. fold_places [B]: batch index of the row in the previous forward. fold_slots [B]: slot
    of the state before these tokens; the result goes to the read slot.

    rope_deltas [B * T]: as in DecodeBatch, of each token.
    """

    positions: Tensor
    owners: Tensor
    token_rows: Tensor
    counts: Tensor
    context_lens: Tensor
    page_table: Tensor
    read_slots: Tensor
    rows: Tensor
    turn: Tensor
    fold_counts: Tensor
    fold_places: Tensor
    fold_slots: Tensor
    rope_deltas: Tensor | None = None

    @property
    def size(self) -> int:
        return self.counts.shape[0]

    @property
    def tokens(self) -> int:
        """Return T, the number of tokens per sequence."""
        return self.positions.shape[0] // self.size


class PicturesUnsupported(Exception):
    """Pictures on a device without operators for them. Use one rank, without hand-overs."""


@dataclass(frozen=True)
class RowSpan:
    """Rows of a picture in place of embeddings. first: the first of its tokens, counted in the
    sequence's slice or in the batch. rows [tokens, hidden]."""

    first: int
    rows: Tensor

    def behind(self, tokens: int) -> "RowSpan":
        """Return the same span, counted from `tokens` tokens earlier."""
        return RowSpan(self.first + tokens, self.rows)


def put_rows(embedded: Tensor, spans: Sequence[RowSpan]) -> Tensor:
    """Write the rows of pictures over embeddings [T, hidden] in place, and return these. spans: the
    rows, and their places in the batch."""
    for span in spans:
        rows = span.rows.to(embedded.device, embedded.dtype)
        embedded[span.first : span.first + len(rows)] = rows
    return embedded


@dataclass(frozen=True)
class SequenceSlice:
    """The tokens of one request in one forward.

    token_ids have the positions start, start + 1, ...; KV of the positions [0, start) is in `pages`
    already. The state after `start` tokens is in read_slot. The state after the last token goes to
    write_slot (it may be read_slot). checkpoints lists (position, slot): the state after `position`
    tokens also goes to slot; start < position <= start + len(token_ids). pages: ids of the pages of
    every position, in order.

    stepped: true if the tokens belong to an answer. Their recurrence goes token by token, as in
    decode steps. Their products have the precision of such steps (`Phase.STEP`). write_slot None:
    no state is stored.

    Of a sequence with pictures: rope_delta is the rotary position of a token behind them, minus its
    position. rope_positions [3, 1 + tokens]: of the tokens and of the one before; None: all are
    behind the pictures. pictures: rows in place of embeddings.

    ids_before: the last token ids before `start`, as many as the model asks for, or all.
    """

    token_ids: Sequence[int]
    start: int
    pages: Sequence[int]
    read_slot: int
    write_slot: int | None
    checkpoints: Sequence[tuple[int, int]] = ()
    stepped: bool = False
    rope_delta: int = 0
    rope_positions: Tensor | None = None
    pictures: Sequence[RowSpan] = ()
    ids_before: Sequence[int] = ()

    @property
    def turns_as_text(self) -> bool:
        """Return true if each token's rotary position is its position."""
        return self.rope_positions is None and not self.rope_delta

    def rope(self) -> Tensor:
        """Return rotary positions [3, 1 + tokens] int64: of the token before, then the tokens."""
        if self.rope_positions is not None:
            return self.rope_positions.long()
        first = self.start + self.rope_delta - 1
        return torch.arange(first, first + len(self.token_ids) + 1).repeat(3, 1)


@dataclass(frozen=True)
class RopePositions:
    """Rotary positions on three axes: frames, rows, columns. tokens [3, T]: of the tokens. entries
    [3, T]: of their entries in the draft layer, one behind the token before."""

    tokens: Tensor
    entries: Tensor

    @staticmethod
    def of(slices: Sequence[SequenceSlice], device: torch.device | str) -> "RopePositions | None":
        """Return the positions of all slices; None if every rotary position is the token's
        position, as in text."""
        if all(item.turns_as_text for item in slices):
            return None
        each = [item.rope() for item in slices]
        return RopePositions(
            torch.cat([rope[:, 1:] for rope in each], dim=1).to(device),
            torch.cat([rope[:, :-1] + 1 for rope in each], dim=1).to(device),
        )


@dataclass(frozen=True)
class Batch:
    """Slices packed for the operators: T tokens of B sequences laid end to end.

    Sequence i has the rows [cu_seqlens[i], cu_seqlens[i + 1]). token_ids, positions: [T] int64.
    cu_seqlens: [B+1] int64. context_lens: [B] int64, number of tokens before this forward.
    page_table: [B, pages] int64 page ids, rows padded with 0. read_slots: [B] int64, slots of the
    states before. write_slots: slot of the final state per sequence; None: not stored. checkpoints:
    per sequence, pairs of (tokens of this forward before the checkpoint, slot), ascending. stepped:
    indices of the sequences with a recurrence token by token. rope: rotary positions; None: equal
    to `positions`, as in text. pictures: rows in place of embeddings. ids_before: per sequence, the
    last token ids before this forward.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    cu_seqlens: torch.Tensor
    context_lens: torch.Tensor
    page_table: torch.Tensor
    read_slots: torch.Tensor
    write_slots: tuple[int | None, ...]
    checkpoints: tuple[tuple[tuple[int, int], ...], ...]
    stepped: frozenset[int] = frozenset()
    rope: RopePositions | None = None
    pictures: tuple[RowSpan, ...] = ()
    ids_before: tuple[Sequence[int], ...] = ()

    def saves(self) -> list[tuple[int, int, int]]:
        """Return all states stored by the forward, as (sequence, tokens of this forward before the
        state, slot). A sequence's final state comes first, then its checkpoints."""
        lengths = self.cu_seqlens.diff().tolist()
        return [
            (sequence, offset, slot)
            for sequence, (length, final, marks) in enumerate(
                zip(lengths, self.write_slots, self.checkpoints, strict=True)
            )
            for offset, slot in ((length, final), *marks)
            if slot is not None
        ]

    @staticmethod
    def pack(slices: Sequence[SequenceSlice], device: torch.device | str = "cpu") -> "Batch":
        lengths = [len(item.token_ids) for item in slices]
        if not lengths or min(lengths) < 1:
            raise ValueError("a batch needs at least one sequence of at least one token")
        rows = max(len(item.pages) for item in slices)
        table = [list(item.pages) + [0] * (rows - len(item.pages)) for item in slices]

        def ints(values: object) -> torch.Tensor:
            return torch.tensor(values, dtype=torch.int64, device=device)

        # A prompt waits for this on the host, so no Python number is made for a token.
        tokens = np.concatenate([np.asarray(item.token_ids, dtype=np.int64) for item in slices])
        positions = [torch.arange(item.start, item.start + len(item.token_ids)) for item in slices]
        return Batch(
            token_ids=torch.from_numpy(tokens).to(device),
            positions=torch.cat(positions).to(device),
            cu_seqlens=torch.cat([ints([0]), ints(lengths).cumsum(0)]),
            context_lens=ints([item.start for item in slices]),
            page_table=ints(table),
            read_slots=ints([item.read_slot for item in slices]),
            write_slots=tuple(item.write_slot for item in slices),
            checkpoints=tuple(
                tuple(sorted((position - item.start, slot) for position, slot in item.checkpoints))
                for item in slices
            ),
            stepped=frozenset(row for row, item in enumerate(slices) if item.stepped),
            rope=RopePositions.of(slices, device),
            pictures=tuple(
                span.behind(before)
                for item, before in zip(slices, accumulate(lengths, initial=0), strict=False)
                for span in item.pictures
            ),
            ids_before=tuple(item.ids_before for item in slices),
        )


@dataclass(frozen=True)
class FoldRows:
    """Folds (states to store after accepted tokens), one per row, [n] int32 on the device. places:
    index of each row among the kept inputs. counts: number of accepted tokens, 1 or more.
    read_slots: slot of the state before the row's tokens. write_slots: slot for the state after the
    accepted tokens. It is no slot of another row, but may be the row's own read slot."""

    places: Tensor
    counts: Tensor
    read_slots: Tensor
    write_slots: Tensor

    @property
    def tables(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.places, self.counts, self.read_slots, self.write_slots


class Phase(Enum):
    """The use of a forward's rows. Precision follows the phase and never the number of rows.
    Otherwise a verified draft, or a partly cached prompt, would give other tokens than the same
    tokens one by one.

    STEP: tokens of an answer, one by one or several verified together.

    PROMPT: tokens of prompts.
    """

    STEP = "step"
    PROMPT = "prompt"


class Activations(Enum):
    """Form of activations in products with FP8 weights.

    MODEL: in the model's dtype. LIBRARY: as FP8 rows if PyTorch's library multiplies them, else in
    the model's dtype. ROWS: always as FP8 rows, in one order of sums for any number of rows.
    """

    MODEL = "model"
    LIBRARY = "library"
    ROWS = "rows"


@dataclass(frozen=True)
class PhaseActivations:
    """Form of activations in each phase."""

    steps: Activations = Activations.MODEL
    prompts: Activations = Activations.LIBRARY

    def of(self, phase: Phase) -> Activations:
        """Return the form of activations in a phase."""
        return self.steps if phase is Phase.STEP else self.prompts


BF16_STEPS = PhaseActivations()
"""Activations of steps are not quantised."""
FP8_STEPS = PhaseActivations(Activations.ROWS, Activations.ROWS)
"""All activations are FP8 rows, of one arithmetic in steps and prompts."""


class LayerHooks(Protocol):
    """Functions called around each layer (of any kind, in order), on the thread of the forward."""

    def before_layer(self, layer: int) -> None:
        """Announce that the forward will begin the layer. The layer has read nothing of the arena
        yet. The call may block until the layer's bytes have arrived."""
        return

    def mixer_inputs(self, layer: int, projected: Tensor) -> None:
        """Receive the input of the layer's mixer before the mixer reads it.
        projected: [T, widths]; for a draft layer, the model's final hidden states. The tensor is
        valid during the call only."""
        return

    def cache_written(self, layer: int) -> None:
        """Announce that the forward has written the layer's pages and slots (on a GPU: enqueued).
        The layer's output projection and feed-forward, a large part of its work, still follow."""
        return

    def after_layer(self, layer: int, stream: Callable[[], Tensor]) -> None:
        """Announce that the whole layer is computed (on a GPU: enqueued). stream: returns the
        residual stream [T, width], valid during the call only; its form is the family's."""
        return


class NullHooks(LayerHooks):
    """Hooks without any action."""


class Reduce(Protocol):
    def __call__(self, partial: Tensor) -> Tensor:
        """Return the sum of all ranks' `partial` [T, hidden]. It is added in rank order, so every
        rank has the same bits. The call may overwrite `partial`. Every rank makes its calls in the
        same order, on the thread of its forward. During the capture of a CUDA graph it must not
        wait on the host."""


class Gather(Protocol):
    def __call__(self, partial: Tensor) -> Tensor:
        """Return all ranks' `partial` [T, columns of one rank], side by side in rank order: [T,
        columns]. Every rank has the same bits. The rules of `Reduce` apply: the same order of calls
        on every rank, and no wait during a capture."""


def one_rank(partial: Tensor) -> Tensor:
    """Return `partial` unchanged, because a single rank has the whole model."""
    return partial
