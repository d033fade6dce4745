"""A batch on a GPU: its inputs and results, and tables kept between steps."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import is_

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tasuki.engine.forward_plan import Ints, PlanError
from tasuki.model.forward import DecodeBatch
from tasuki.model.ops.sampling.gumbel import noise_key
from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.model.ops.sampling.sample import Draws

from .base import SampledTokens
from .rows import ResolvedRows, SequencePages, SequenceStates


class BlockTable:
    """The block table of the decoding rows on a GPU, kept between steps: a step copies only new
    pages.

    Owns the table, the sequence in each row and the written length of each row. Thread rule and
    copies: as in DeviceBatch.

    table: [rows, pages] int32; in a row only the pages of its sequence are valid.
    """

    def __init__(self, rows: int, pages: int, device: torch.device) -> None:
        self.table = torch.zeros(rows, pages, dtype=torch.int32, device=device)
        self._seated: list[SequencePages] = []
        self._written: list[int] = []

    def seat(self, sequences: Sequence[SequencePages]) -> list[int]:
        """Assign the sequences to rows of the table. Return, for each row, the index of its
        sequence in `sequences`. A sequence staying in the batch keeps its row if possible. The
        table holds each row's pages for all later work in the stream."""
        if len(sequences) == len(self._seated) and all(map(is_, sequences, self._seated)):
            order = list(range(len(sequences)))
        else:
            order = self._reseat(sequences)
        for row, number in enumerate(order):
            ids = sequences[number].ids
            if len(ids) > self._written[row]:
                self._write(row, sequences[number])
        return order

    def _reseat(self, sequences: Sequence[SequencePages]) -> list[int]:
        waiting = {id(pages): number for number, pages in enumerate(sequences)}
        kept = [waiting.pop(id(pages), None) for pages in self._seated[: len(sequences)]]
        kept += [None] * (len(sequences) - len(kept))
        newcomers = iter(waiting.values())
        order = [next(newcomers) if number is None else number for number in kept]
        self._written = [
            0 if number is None else written
            for number, written in zip(kept, self._written + [0] * len(sequences), strict=False)
        ]
        # Keep a reference, not only the id(): an id() may return once its object is gone.
        self._seated = [sequences[number] for number in order]
        return order

    def _write(self, row: int, pages: SequencePages) -> None:
        first, last = self._written[row], len(pages.ids)
        fresh = torch.empty(last - first, dtype=torch.int32, pin_memory=True)
        fresh.numpy()[:] = pages.ids[first:]
        self.table[row, first:last].copy_(fresh, non_blocking=True)
        self._written[row] = last


class LastTokens:
    """The last sampled token of every sequence, on the GPU: the input of the next step.

    Owns one token per batch index. Batch indices are slot ids; one more is for padding rows.
    """

    def __init__(self, slots: int, device: torch.device) -> None:
        self.scratch = slots
        self._tokens = torch.zeros(slots + 1, dtype=torch.int32, device=device)

    @property
    def all(self) -> Tensor:
        """All last tokens by batch index, [batch indices] int32, at their fixed address."""
        return self._tokens

    def tokens(self, batch_indices: Tensor) -> Tensor:
        """Return the last tokens, [n] int32, at batch indices [n] int32."""
        return self._tokens.index_select(0, batch_indices)

    def put(self, batch_indices: Tensor, tokens: Tensor) -> None:
        """Store tokens at batch indices, both [n] int32 on the device."""
        self._tokens.index_copy_(0, batch_indices.long(), tokens)

    def put_known(self, batch_indices: Ints, tokens: Ints) -> None:
        """Store tokens at batch indices, both [n] on the host."""
        host = torch.empty(2, len(batch_indices), dtype=torch.int64, pin_memory=True)
        host.numpy()[:] = batch_indices, tokens
        known_indices, known = host.to(self._tokens.device, non_blocking=True)
        self._tokens.index_copy_(0, known_indices, known.int())


class RowDrafts:
    """Drafts guessed by the draft layer for each batch index, on the GPU. They are the drafts of
    the next step. The host knows only their number.

    Owns a row of draft tokens per batch index, and their counts. Thread rule: the engine loop's;
    one stream.
    """

    def __init__(self, batch_indices: int, drafts: int, device: torch.device) -> None:
        """batch_indices: number of batch indices, including the one of padding rows. drafts: most
        drafts per batch index."""
        self.tokens: Tensor = torch.zeros(batch_indices, drafts, dtype=torch.int32, device=device)
        """Draft tokens, [batch indices, drafts] int32; written by the graphs of guesses."""
        self._counts: dict[int, int] = {}

    def guessed(self, batch_indices: Iterable[int], counts: Iterable[int]) -> None:
        """Record the number of drafts stored at these batch indices for later work in the stream.
        They replace the previous drafts."""
        self._counts.update(zip(batch_indices, counts, strict=True))

    def check(self, batch_index: int, count: int) -> None:
        """Raise PlanError if fewer than `count` drafts are stored at the batch index."""
        there = self._counts.get(batch_index, 0)
        if count > there:
            raise PlanError(
                f"batch index {batch_index} is to verify {count} drafts of its own, and has {there}"
            )

    def drop(self, batch_indices: Iterable[int]) -> None:
        for batch_index in batch_indices:
            self._counts.pop(batch_index, None)


_ROWS, _LANES, _POSITIONS, _CONTEXT, _READ, _WRITE, _TOP_K, _HEAT, _TOP_P, _DELTAS = range(10)
_KEYS = 10
_FIELDS = 12
# Each field begins at a multiple of this many numbers, so it is aligned to 128 bytes.
_ALIGNMENT = 32
_FAR = 2**31 - 1


class SamplingTable:
    """Sampling parameters by batch index, one row of numbers for each; set when a sequence joins.

    cuts [batch indices] bool: True to sample only from the likeliest tokens. adjusts [batch
    indices] bool, top_logprobs [batch indices] int32: need work outside of the graph's sampler
    (eager_sampler.py). rules [batch indices, 2] int32: half-open range of positions with logits
    possibly changed by a thinking budget. follows [batch indices] bool: True if sampling depends on
    all earlier tokens, though the graph samples most.
    """

    def __init__(self, batch_indices: int) -> None:
        self.top_k = np.zeros(batch_indices, dtype=np.int32)
        self.temperature = np.zeros(batch_indices, dtype=np.float32)
        self.top_p = np.ones(batch_indices, dtype=np.float32)
        self.keys: Ints = np.zeros((batch_indices, 2), dtype=np.int32)
        self.cuts: NDArray[np.bool_] = np.zeros(batch_indices, dtype=np.bool_)
        self.adjusts: NDArray[np.bool_] = np.zeros(batch_indices, dtype=np.bool_)
        self.top_logprobs: Ints = np.zeros(batch_indices, dtype=np.int32)
        self.rules: Ints = np.zeros((batch_indices, 2), dtype=np.int32)
        self.follows: NDArray[np.bool_] = np.zeros(batch_indices, dtype=np.bool_)

    def join(self, batch_index: int, sampling: SamplingParams, begins: int) -> None:
        """Store a sequence's sampling parameters. begins: position of the answer's first token."""
        self.temperature[batch_index] = sampling.temperature
        # Greedy rows need no cut: the best of all is the best of any cut.
        self.top_k[batch_index] = sampling.top_k if sampling.temperature else 0
        self.top_p[batch_index] = sampling.top_p if sampling.temperature else 1
        self.keys[batch_index] = noise_key(sampling.seed)
        self.cuts[batch_index] = sampling.temperature > 0 and (
            sampling.top_k > 0 or sampling.top_p < 1
        )
        self.adjusts[batch_index] = sampling.adjusts_every_draw
        self.top_logprobs[batch_index] = sampling.top_logprobs
        rules = range(0) if sampling.thinking is None else sampling.thinking.rules
        # No token is sampled behind the last position of any sequence.
        self.rules[batch_index] = min(begins + rules.start, _FAR), min(begins + rules.stop, _FAR)
        self.follows[batch_index] = sampling.thinking is not None and not self.adjusts[batch_index]

    def adjusted(self, rows: ResolvedRows) -> NDArray[np.bool_]:
        """Return bool [n]: True if logits after any token of the row may be adjusted."""
        first, end = self.rules[rows.batch_indices].T
        drawn_first, drawn_last = rows.starts + 1, rows.stops
        ruled: NDArray[np.bool_] = (drawn_first < end) & (first <= drawn_last)
        return self.adjusts[rows.batch_indices] | ruled

    def sees_all(self, rows: ResolvedRows) -> bool:
        """Return True if sampling of any row needs logits of the whole vocabulary after the graph's
        own sampling."""
        batch_indices = rows.batch_indices
        wanted = (
            self.cuts[batch_indices] | self.adjusted(rows) | (self.top_logprobs[batch_indices] > 0)
        )
        return bool(wanted.any())


@dataclass(frozen=True)
class RowStates:
    """A runner's state of its sequences between forwards, by batch index."""

    sequences: SequenceStates
    sampling: SamplingTable
    last_tokens: LastTokens


@dataclass(frozen=True)
class StepShape:
    """The largest step of a runner. rows: most rows. pages: most pages of a row."""

    rows: int
    pages: int


class DeviceBatch:
    """The inputs and results of a batch's rows on a GPU: inputs are filled by one copy, results
    read by one copy.

    Owns both blocks of memory; their addresses never change, so graphs may be captured over them.
    Knows neither pages nor the model. Thread rule: the engine loop's, one stream. Copies are
    asynchronous. Their pinned memory is not reused before they have ended.

    capacity: most rows. scratch_index: the batch index of padding rows.
    """

    def __init__(self, capacity: int, scratch_index: int, device: torch.device) -> None:
        self._stride = -(-capacity // _ALIGNMENT) * _ALIGNMENT
        self._scratch_index = scratch_index
        self._inputs = torch.zeros(_FIELDS, self._stride, dtype=torch.int32, device=device)
        self._inputs[_LANES] = scratch_index
        # Tokens start as valid ids: graphs look up the embeddings of rows past the last one too.
        self._results = torch.zeros(3, self._stride, dtype=torch.int32, device=device)

    def clear(self) -> None:
        """Make all rows padding, for later work in the stream."""
        self._copy(self._blank(0))

    def fill(self, rows: ResolvedRows, sampling: SamplingTable) -> None:
        """Fill row i with rows[i], for later work in the stream. A token is sampled after the row's
        last one."""
        count, batch_indices, stops = len(rows), rows.batch_indices, rows.stops
        host = self._blank(count)
        fields, floats = host.numpy(), host.view(torch.float32).numpy()
        fields[_LANES, :count] = batch_indices
        fields[_POSITIONS, :count] = stops - 1
        fields[_CONTEXT, :count] = stops
        fields[_READ, :count] = rows.read_slots
        fields[_WRITE, :count] = rows.write_slots
        fields[_DELTAS, :count] = rows.rope_deltas
        fields[_TOP_K, :count] = sampling.top_k[batch_indices]
        floats[_HEAT, :count] = sampling.temperature[batch_indices]
        floats[_TOP_P, :count] = sampling.top_p[batch_indices]
        keys = fields[_KEYS : _KEYS + 2].reshape(-1)
        keys[: 2 * count] = sampling.keys[batch_indices].reshape(-1)
        self._copy(host)

    def _blank(self, count: int) -> Tensor:
        """Return host memory for the inputs of `count` rows; all rows are padding."""
        host = torch.zeros(_FIELDS, self._stride, dtype=torch.int32, pin_memory=True)
        fields = host.numpy()
        fields[_ROWS] = count
        fields[_LANES] = self._scratch_index
        return host

    def _copy(self, host: Tensor) -> None:
        self._inputs.copy_(host, non_blocking=True)

    def read(self) -> Tensor:
        """Start to copy the sampled tokens to the host. take_over() reads them after the copy."""
        return to_host(self._results)

    @property
    def results(self) -> Tensor:
        """Results written through draws(), [3, rows or more] int32: tokens, logprobs, margins."""
        return self._results

    @property
    def rows(self) -> Tensor:
        """Return the number of rows without padding, [1] int32 on the device."""
        return self._inputs[_ROWS, :1]

    def batch_indices(self, size: int) -> Tensor:
        return self._inputs[_LANES, :size]

    def positions(self, size: int) -> Tensor:
        return self._inputs[_POSITIONS, :size]

    def rope_deltas(self, size: int) -> Tensor:
        """Return each row's rotary position minus its position, [size] int32."""
        return self._inputs[_DELTAS, :size]

    def decode_batch(self, size: int, table: Tensor) -> DecodeBatch:
        """Return the first `size` rows as the model's batch. table: block table [rows, pages] of
        these rows."""
        return DecodeBatch(
            positions=self.positions(size),
            context_lens=self._inputs[_CONTEXT, :size],
            page_table=table[:size],
            read_slots=self._inputs[_READ, :size],
            write_slots=self._inputs[_WRITE, :size],
            rows=self.rows,
            rope_deltas=self.rope_deltas(size),
        )

    def draws(self, size: int) -> Draws:
        floats, sampled = self._inputs.view(torch.float32), self._results.view(torch.float32)
        return Draws(
            temperature=floats[_HEAT, :size],
            top_k=self._inputs[_TOP_K, :size],
            top_p=floats[_TOP_P, :size],
            keys=self._inputs[_KEYS : _KEYS + 2].view(-1, 2)[:size],
            # The sampled token's position follows its context.
            positions=self._inputs[_CONTEXT, :size],
            token=self._results[0, :size],
            logprob=sampled[1, :size],
            margin=sampled[2, :size],
        )


def to_host(values: Tensor) -> Tensor:
    """Start to copy the values to pinned host memory; return this memory."""
    host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    host.copy_(values, non_blocking=True)
    return host


def to_device(numbers: NDArray[np.int64], device: torch.device) -> Tensor:
    """Start to copy the numbers to the device, from pinned memory."""
    return torch.from_numpy(numbers).pin_memory().to(device, non_blocking=True)


def take_over(results: Tensor, sampled: SampledTokens, rows: NDArray[np.int64]) -> None:
    """Copy results of DeviceBatch.read() to `sampled`, at its rows `rows` [n]. results: [3, at
    least n] int32 on the host: tokens, logprobs, margins; the last two are float32 bits."""
    numbers, floats = results.numpy(), results.view(torch.float32).numpy()
    count = len(rows)
    sampled.tokens[rows] = numbers[0, :count]
    sampled.logprobs[rows] = floats[1, :count]
    sampled.margins[rows] = floats[2, :count]
