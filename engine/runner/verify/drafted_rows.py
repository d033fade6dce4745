"""Rows with drafts as numbers on a GPU: two batches, of sequences and of their tokens, and what
neither of them has.

Owns them; their addresses never change, so that graphs may be captured over them. Thread rule and
copies: as in device_batch.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from tasuki.engine.forward_plan import Ints
from tasuki.engine.runner.device_batch import DeviceBatch, SamplingTable
from tasuki.engine.runner.sequence_states import ResolvedRows
from tasuki.model.batch import VerifyBatch
from tasuki.model.ops.draft.take_drafts import take_drafts
from tasuki.model.ops.sampling.sample import Draws

_IDS, _COUNTS, _TAKEN, _TURN, _FOLD_COUNTS, _FOLD_PLACES, _FOLD_SLOTS = range(7)


@dataclass(frozen=True)
class HeldFold:
    """The first `count` tokens of the row that the last step kept at `place`: from the state in
    read_slot to the one in write_slot."""

    place: int
    count: int
    read_slot: int
    write_slot: int


@dataclass(frozen=True)
class LastDrawn:
    """What the last step of such rows left, where it always stands. ids [n] int32: each row's token
    and drafts, one row behind the other; counts [rows] int32: how many of a row mean something;
    drawn [n] int32: behind each; hidden [rows, most tokens of a row, width]: of each."""

    ids: Tensor
    counts: Tensor
    drawn: Tensor
    hidden: Tensor


class DraftedRows:
    """At most `capacity` rows of at most `width` tokens; scratch_lane: as for a DeviceBatch."""

    def __init__(self, capacity: int, width: int, scratch_lane: int, device: torch.device) -> None:
        self._sequences = DeviceBatch(capacity, scratch_lane, device)
        self._tokens = DeviceBatch(capacity * width, scratch_lane, device)
        # Graphs look up the embeddings of tokens that mean nothing too, so that all are valid ids.
        self._numbers = torch.zeros(7, capacity * width, dtype=torch.int32, device=device)
        every = torch.arange(capacity, dtype=torch.int32, device=device)
        self._owners = {some: every.repeat_interleave(some) for some in range(1, width + 1)}

    def clear(self) -> None:
        """No row counts from here on in the stream."""
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
        """each: token_rows() of the rows; ids [rows, width]: of these, but for drafts on lanes.
        turn: of the step. folds: that rows begin with, by lane."""
        self._sequences.fill(rows, sampling)
        self._tokens.fill(each, sampling)
        host = torch.zeros(self._numbers.shape, dtype=torch.int32, pin_memory=True)
        numbers = host.numpy()
        numbers[_IDS, : ids.size] = ids.reshape(-1)
        numbers[_COUNTS, : len(rows)] = rows.lengths
        numbers[_TAKEN, : len(rows)] = rows.drafts_on_lane
        numbers[_TURN] = turn
        numbers[_FOLD_SLOTS, : len(rows)] = rows.read_slots
        for row, lane in enumerate(rows.lanes.tolist() if folds else ()):
            fold = folds.get(lane)
            if fold is not None:
                numbers[_FOLD_COUNTS, row] = fold.count
                numbers[_FOLD_PLACES, row] = fold.place
                numbers[_FOLD_SLOTS, row] = fold.read_slot
        self._numbers.copy_(host, non_blocking=True)

    def read(self) -> Tensor:
        """As DeviceBatch.read(), by tokens."""
        return self._tokens.read()

    def read_ids(self) -> Tensor:
        """Start to copy the tokens of all rows, [n] int32, those taken from lanes included."""
        ids = self._numbers[_IDS]
        host = torch.empty(ids.shape, dtype=torch.int32, pin_memory=True)
        host.copy_(ids, non_blocking=True)
        return host

    @property
    def tokens(self) -> Tensor:
        """[1]: how many tokens count, or stand between those."""
        return self._tokens.rows

    def take_drafts(self, size: int, width: int, drafts: Tensor) -> Tensor:
        """Tokens [size * width] of the first rows, with the drafts that stand on their lanes.
        drafts [lanes, at least width - 1]."""
        ids, counts = self.ids(size, width), self._numbers[_COUNTS, :size]
        lanes = self._sequences.lanes(size)
        take_drafts(ids, width, counts, self._numbers[_TAKEN, :size], lanes, drafts)
        return ids

    def ids(self, size: int, width: int) -> Tensor:
        return self._numbers[_IDS, : size * width]

    def put(self, places: Tensor, tokens: Tensor) -> None:
        """What was drawn elsewhere behind the tokens at these places: int64, int32."""
        self._drawn.index_copy_(0, places, tokens)

    @property
    def _drawn(self) -> Tensor:
        return self._tokens.draws(self._numbers.shape[1]).token

    def last_drawn(self, hidden: Tensor) -> LastDrawn:
        """hidden: as LastDrawn has it."""
        return LastDrawn(self._numbers[_IDS], self._numbers[_COUNTS], self._drawn, hidden)

    def draws(self, size: int, width: int) -> Draws:
        return self._tokens.draws(size * width)

    def batch(self, size: int, width: int, table: Tensor) -> VerifyBatch:
        """The first `size` rows of `width` tokens as the model takes them. table [rows, pages]."""
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
        )
