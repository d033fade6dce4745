"""Rows with drafts on a GPU: drafts to verify, verified results, rows to guess after."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tasuki.engine.forward_plan import Ints
from tasuki.model.forward import DecodeBatch, VerifyBatch
from tasuki.model.ops.draft.chain import Chain, ChainStarts
from tasuki.model.ops.draft.take_drafts import take_drafts
from tasuki.model.ops.sampling.params import TopLogprobs
from tasuki.model.ops.sampling.reference import Sampled
from tasuki.model.ops.sampling.sample import Draws

from .base import SampledTokens
from .device_batch import DeviceBatch, LastTokens, SamplingTable, to_host
from .eager_sampler import TopTokens
from .rows import ResolvedRows

_IDS, _COUNTS, _TAKEN, _TURN, _FOLD_COUNTS, _FOLD_PLACES, _FOLD_SLOTS = range(7)


@dataclass(frozen=True)
class HeldFold:
    """A fold (storing a state after accepted tokens) of the row with index `place` in the last
    step. Its first `count` tokens, after `start` tokens of the sequence, advance the state in
    read_slot; the result goes to write_slot."""

    place: int
    start: int
    count: int
    read_slot: int
    write_slot: int


@dataclass(frozen=True)
class LastSampled:
    """The last step's results of rows with drafts, at fixed addresses.

    ids: [n] int32, each row's token and drafts, row after row. counts: [rows] int32, number of
    valid tokens of a row. sampled: [n] int32, the token sampled after each one in `ids`. hidden:
    [rows, most tokens of a row, width], the hidden state of each.
    """

    ids: Tensor
    counts: Tensor
    sampled: Tensor
    hidden: Tensor


class DraftedRows:
    """The inputs and results of rows with drafts on a GPU: a batch of sequences, a batch of their
    tokens, and further columns.

    Owns these buffers; their addresses never change, so graphs may be captured over them. Thread
    rule and copies: as in DeviceBatch.

    capacity: most rows. width: most tokens of a row. scratch_index: the batch index of padding
    rows.
    """

    def __init__(self, capacity: int, width: int, scratch_index: int, device: torch.device) -> None:
        self._sequences = DeviceBatch(capacity, scratch_index, device)
        self._tokens = DeviceBatch(capacity * width, scratch_index, device)
        # Graphs also look up embeddings of meaningless tokens, so all must be valid ids.
        self._numbers = torch.zeros(7, capacity * width, dtype=torch.int32, device=device)
        every = torch.arange(capacity, dtype=torch.int32, device=device)
        self._owners = {some: every.repeat_interleave(some) for some in range(1, width + 1)}

    def clear(self) -> None:
        """Make all rows padding, for later work in the stream."""
        self._sequences.clear()
        self._tokens.clear()
        self._numbers.zero_()

    def fill(
        self,
        rows: ResolvedRows,
        each: ResolvedRows,
        ids: Ints,
        sampling: SamplingTable,
        turn: int,
        folds: Mapping[int, HeldFold],
    ) -> None:
        """Fill the rows, for later work in the stream. each: token_rows() of the rows. ids: [rows,
        width], the rows' tokens, except drafts stored at batch indices. turn: index (0 or 1) of the
        buffer for the step's kept inputs. folds: states to store before the rows are computed, by
        batch index."""
        self._sequences.fill(rows, sampling)
        self._tokens.fill(each, sampling)
        host = torch.zeros(self._numbers.shape, dtype=torch.int32, pin_memory=True)
        numbers = host.numpy()
        numbers[_IDS, : ids.size] = ids.reshape(-1)
        numbers[_COUNTS, : len(rows)] = rows.lengths
        numbers[_TAKEN, : len(rows)] = rows.drafts_at_index
        numbers[_TURN] = turn
        numbers[_FOLD_SLOTS, : len(rows)] = rows.read_slots
        for row, batch_index in enumerate(rows.batch_indices.tolist() if folds else ()):
            fold = folds.get(batch_index)
            if fold is not None:
                numbers[_FOLD_COUNTS, row] = fold.count
                numbers[_FOLD_PLACES, row] = fold.place
                numbers[_FOLD_SLOTS, row] = fold.read_slot
        self._numbers.copy_(host, non_blocking=True)

    def read(self) -> Tensor:
        """Start to copy the tokens sampled after each token to the host, like
        DeviceBatch.read()."""
        return self._tokens.read()

    def read_ids(self) -> Tensor:
        """Start to copy the input tokens of all rows to the host, [n] int32, with stored drafts."""
        return to_host(self._numbers[_IDS])

    @property
    def tokens(self) -> Tensor:
        """Number of tokens in all rows, [1] on the device, including padding between rows."""
        return self._tokens.rows

    def take_drafts(self, size: int, width: int, drafts: Tensor) -> Tensor:
        """Return the input tokens [size * width] of the first `size` rows, with stored drafts
        filled in from their batch indices. drafts: [batch indices, at least width - 1]."""
        ids, counts = self.ids(size, width), self._numbers[_COUNTS, :size]
        batch_indices = self._sequences.batch_indices(size)
        take_drafts(ids, width, counts, self._numbers[_TAKEN, :size], batch_indices, drafts)
        return ids

    def ids(self, size: int, width: int) -> Tensor:
        return self._numbers[_IDS, : size * width]

    def put(self, places: Tensor, tokens: Tensor) -> None:
        """Replace tokens sampled by the graph. places: int64 indices of the tokens they follow.
        tokens: int32, the new ones."""
        self._sampled.index_copy_(0, places, tokens)

    @property
    def _sampled(self) -> Tensor:
        return self._tokens.draws(self._numbers.shape[1]).token

    def last_sampled(self, hidden: Tensor) -> LastSampled:
        """Return the last step's results. hidden: hidden states, as in LastSampled."""
        return LastSampled(self._numbers[_IDS], self._numbers[_COUNTS], self._sampled, hidden)

    def draws(self, size: int, width: int) -> Draws:
        return self._tokens.draws(size * width)

    def batch(self, size: int, width: int, table: Tensor) -> VerifyBatch:
        """Return the first `size` rows of `width` tokens as the model's batch. table: block table
        [rows, pages]."""
        rows = self._sequences.decode_batch(size, table)
        return VerifyBatch(
            positions=self._tokens.decode_batch(size * width, table).positions,
            owners=self._owners[width][: size * width],
            token_rows=self._tokens.rows,
            counts=self._numbers[_COUNTS, :size],
            context_lens=rows.context_lens,
            page_table=rows.page_table,
            read_slots=rows.read_slots,
            rows=rows.rows,
            turn=self._numbers[_TURN, :1],
            fold_counts=self._numbers[_FOLD_COUNTS, :size],
            fold_places=self._numbers[_FOLD_PLACES, :size],
            fold_slots=self._numbers[_FOLD_SLOTS, :size],
            rope_deltas=self._tokens.rope_deltas(size * width),
        )


@dataclass(frozen=True)
class VerifiedRows:
    """The tokens sampled after each token of rows with drafts, being copied to the host, and the
    number accepted. A sampled token counts only if the draft before it equals the token sampled in
    its place.

    Owns nothing. Thread rule: the engine loop's.

    rows: indices of the rows in the plan. lengths: number of tokens of each row. Each row has
    `width` tokens in `ids` (its input; all but the first are drafts), in `sampled` (as in
    DeviceBatch.read()) and in `tops`. adjusted: all accepted tokens of rows sampled token by token,
    by index in `rows`.
    """

    rows: NDArray[np.int64]
    lengths: Ints
    ids: Tensor
    width: int
    sampled: Tensor
    tops: Sequence[TopTokens]
    adjusted: Mapping[int, Sequence[Sampled]]

    def put(
        self, sampled: SampledTokens
    ) -> tuple[dict[int, TopLogprobs], dict[int, tuple[Sampled, ...]]]:
        """Store each row's first sampled token in `sampled`. Return the likeliest tokens of the
        first token, and the tokens sampled after accepted drafts, both by row of the plan.
        REQUIRES: the stream has copied the results to the host."""
        first: dict[int, TopLogprobs] = {}
        behind: dict[int, tuple[Sampled, ...]] = {}
        for row, (token, *more) in zip(self.rows.tolist(), self._counted, strict=True):
            sampled.tokens[row] = token.token
            sampled.logprobs[row], sampled.margins[row] = token.logprob, token.margin
            if token.top:
                first[row] = token.top
            behind[row] = tuple(more)
        return first, behind

    def tokens_of(self, places: Sequence[int]) -> list[list[int]]:
        """Return the accepted tokens of each row in `places`, indices into `rows`. REQUIRES: the
        stream has copied the results to the host."""
        return [[token.token for token in self._counted[place]] for place in places]

    @cached_property
    def _counted(self) -> list[Sequence[Sampled]]:
        """The accepted tokens of each row, in the order of `rows`."""
        tops = {at: top for tokens in self.tops for at, top in tokens.of_rows()}
        # Convert the columns of all rows at once, because the device waits meanwhile.
        shape = (len(self.rows), self.width)
        tokens = self.sampled[0, : len(self.rows) * self.width].numpy().reshape(shape)
        ids = self.ids[: tokens.size].numpy().reshape(shape)
        holds = tokens[:, :-1] == ids[:, 1:]
        holds &= np.arange(1, self.width) < self.lengths[:, None]
        counts = 1 + np.logical_and.accumulate(holds, axis=1).sum(axis=1)
        listed = self.sampled[0].tolist()
        logprobs, margins = self.sampled[1:].view(torch.float32).tolist()
        found: list[Sequence[Sampled]] = []
        for place, count in enumerate(counts.tolist()):
            own = range(place * self.width, place * self.width + count)
            draws = [Sampled(listed[at], logprobs[at], margins[at], tops.get(at, ())) for at in own]
            found.append(self.adjusted.get(place) or draws)
        return found


_LEFT, _PLACES, _SLOTS, _WIDTH = range(4)


class GuessRows:
    """Rows followed by guesses of the draft layer, as buffers on a GPU.

    Owns the rows' inputs, and the hidden states passed from one guess to the next. Their addresses
    never change, so graphs may be captured over them. Thread rule and copies: as in DeviceBatch.

    capacity: most rows.
    """

    def __init__(
        self, capacity: int, last_tokens: LastTokens, carry: Tensor, verified: LastSampled
    ) -> None:
        """carry: [slots, width], the hidden state stored with each slot.
        verified: results of the last step's rows with drafts, at their fixed addresses."""
        device = carry.device
        self._numbers = DeviceBatch(capacity, last_tokens.scratch, device)
        self._seats = torch.zeros(4, capacity, dtype=torch.int32, device=device)
        self._hidden = torch.zeros(
            capacity, carry.shape[1], dtype=verified.hidden.dtype, device=device
        )
        self._last_tokens = last_tokens
        self._carry = carry
        self._verified = verified
        self.counts = torch.ones(capacity, dtype=torch.int32, device=device)
        """Number of tokens of each row: always 1."""

    def clear(self) -> None:
        """Make all rows padding, for later work in the stream."""
        self._numbers.clear()

    def fill(
        self,
        rows: ResolvedRows,
        wanted: Sequence[int],
        places: Sequence[int],
        slots: Ints,
        width: int,
        sampling: SamplingTable,
    ) -> None:
        """Fill the rows, for later work in the stream.

        rows: one token each, the last one before the guesses. Its position assumes no accepted
        draft in the forward. wanted: number of guesses of each row, at least one. places: each
        row's index among the last step's rows with drafts. -1: no drafts; the row begins with its
        batch index's last token and its slot's stored hidden state. slots: each row's slot, read
        for place -1. width: tokens per row in the last step. sampling: settings by batch index.
        """
        self._numbers.fill(rows, sampling)
        host = torch.zeros(self._seats.shape, dtype=torch.int32, pin_memory=True)
        seats = host.numpy()
        seats[_LEFT, : len(rows)] = wanted
        seats[_PLACES, : len(rows)] = places
        seats[_SLOTS, : len(rows)] = slots
        seats[_WIDTH] = width
        self._seats.copy_(host, non_blocking=True)

    @property
    def rows(self) -> Tensor:
        """Return the number of rows without padding, [1] int32 on the device."""
        return self._numbers.rows

    def batch_indices(self, size: int) -> Tensor:
        return self._numbers.batch_indices(size)

    def chain(self, size: int) -> Chain:
        draws = self.draws(size)
        return Chain(
            tokens=draws.token,
            hidden=self._hidden[:size],
            positions=self._numbers.positions(size),
            # A draft's position follows its context.
            context_lens=draws.positions,
            left=self._seats[_LEFT, :size],
            rows=self.rows,
        )

    def starts(self, size: int) -> ChainStarts:
        verified = self._verified
        return ChainStarts(
            places=self._seats[_PLACES, :size],
            lanes=self.batch_indices(size),
            slots=self._seats[_SLOTS, :size],
            last_tokens=self._last_tokens.all,
            carry=self._carry,
            width=self._seats[_WIDTH, :1],
            drawn=verified.sampled,
            ids=verified.ids,
            counts=verified.counts,
            hidden=verified.hidden,
        )

    def draws(self, size: int) -> Draws:
        """Return the sampling inputs and results of the next guess. Its tokens are the ones before
        the guess until the guess is sampled."""
        return self._numbers.draws(size)

    def batch(self, size: int, table: Tensor) -> DecodeBatch:
        """Return the first `size` rows as the model's batch. table: block table [rows, pages] of
        these rows."""
        return self._numbers.decode_batch(size, table)
