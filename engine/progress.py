"""The progress of every running sequence's forwards, by batch index.

The rows of a forward are read and advanced all together, as columns. All other code sees one
sequence (Progress). Owns these token counts from begin() to end(). Knows no requests, tokens or
pages. Thread rule: the engine loop's.

Invariants:
1. A batch index is the first working slot of an allocation, so two sequences never share one at a
   time. Sequences are numbered 1, 2, 3, ...; holders[i] is the number of the sequence at batch
   index i, or 0. Batch index and number together show if a sequence still runs.
2. num_computed <= num_scheduled. With two working slots, the forward in flight never writes the
   slot of the computed tokens.
3. A Progress of an ended sequence cannot be read, as another may have its batch index.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .forward_plan import Ints

BatchIndices = NDArray[np.intp]
"""An array [n] of batch indices, as an index type: numpy looks columns up by it without a copy."""


@dataclass(frozen=True)
class NextTokens:
    """The next tokens of some sequences, one for each, as columns [n]. starts: position of the
    token to be computed. read_index, write_index: indices of the working slots read and written.
    sampled_before: True if the token is still being sampled by the forward in flight."""

    starts: Ints
    read_index: Ints
    write_index: Ints
    sampled_before: NDArray[np.bool_]

    def take(self, rows: NDArray[np.intp]) -> "NextTokens":
        return NextTokens(*(column[rows] for column in vars(self).values()))


class ProgressTable:
    def __init__(self, batch_indices: int) -> None:
        self.holders: NDArray[np.int64] = np.zeros(batch_indices, dtype=np.int64)
        self._begun = 0
        self._slots: Ints = np.ones(batch_indices, dtype=np.int32)
        self.num_computed: Ints = np.zeros(batch_indices, dtype=np.int32)
        self.slot: Ints = np.zeros(batch_indices, dtype=np.int32)
        self.num_scheduled: Ints = np.zeros(batch_indices, dtype=np.int32)
        self.scheduled_slot: Ints = np.zeros(batch_indices, dtype=np.int32)
        self.sampling_in_flight: Ints = np.zeros(batch_indices, dtype=np.int32)

    def begin(self, working_slots: tuple[int, ...], num_computed: int, slot: int = 0) -> "Progress":
        """Begin a sequence and return its Progress. working_slots: its slots; the first is its
        batch index. num_computed: number of its tokens without need of a forward. The state after
        them is in the working slot of index `slot`. REQUIRES: its batch index is free."""
        batch_index = working_slots[0]
        assert self.holders[batch_index] == 0, f"batch index {batch_index} has a sequence already"
        self._begun += 1
        self.holders[batch_index] = self._begun
        self._slots[batch_index] = len(working_slots)
        self.num_computed[batch_index] = self.num_scheduled[batch_index] = num_computed
        self.slot[batch_index] = self.scheduled_slot[batch_index] = slot
        self.sampling_in_flight[batch_index] = 0
        return Progress(self, batch_index, self._begun)

    def schedule_next(self, batch_indices: BatchIndices) -> NextTokens:
        """Schedule one more token of each sequence in a forward, with one token sampled after it.
        Return the tokens' positions and slots. REQUIRES: no batch index comes twice."""
        starts, read_index = self.num_scheduled[batch_indices], self.scheduled_slot[batch_indices]
        write_index = (read_index + 1) % self._slots[batch_indices]
        sampled_before = self.sampling_in_flight[batch_indices] != 0
        self.num_scheduled[batch_indices] = starts + 1
        self.scheduled_slot[batch_indices] = write_index
        self.sampling_in_flight[batch_indices] = 1
        return NextTokens(starts, read_index, write_index, sampled_before)

    def complete_next(self, batch_indices: BatchIndices, tokens: NextTokens) -> None:
        """Record the end of a forward scheduled by schedule_next(). The next forward may be in
        flight already. REQUIRES: the same sequences still have the batch indices."""
        stops = tokens.starts + 1
        self.num_computed[batch_indices] = stops
        self.slot[batch_indices] = tokens.write_index
        self.sampling_in_flight[batch_indices] = self.num_scheduled[batch_indices] != stops


class Progress:
    """The progress of one sequence.

    num_computed: number of tokens certainly forwarded; the state after them is in working slot
    `slot`. num_scheduled: also counts the tokens of the forward in flight; the state after them
    will be in `scheduled_slot`. sampling_in_flight: number of tokens sampled by this forward, with
    values not known yet. Slots are indices of working slots.
    """

    def __init__(self, table: ProgressTable, batch_index: int, number: int) -> None:
        self._table = table
        self._batch_index = batch_index
        self.number = number

    @property
    def batch_index(self) -> int:
        assert self._table.holders[self._batch_index] == self.number, "its sequence has ended"
        return self._batch_index

    @property
    def num_computed(self) -> int:
        return int(self._table.num_computed[self.batch_index])

    @property
    def slot(self) -> int:
        return int(self._table.slot[self.batch_index])

    @property
    def num_scheduled(self) -> int:
        return int(self._table.num_scheduled[self.batch_index])

    @property
    def scheduled_slot(self) -> int:
        return int(self._table.scheduled_slot[self.batch_index])

    @property
    def sampling_in_flight(self) -> int:
        return int(self._table.sampling_in_flight[self.batch_index])

    @property
    def settled(self) -> bool:
        """Return True if no forward of the sequence is in flight."""
        return self.num_scheduled == self.num_computed

    def schedule(self, stop: int, slot: int, num_sampled: int) -> None:
        table, batch_index = self._table, self.batch_index
        table.num_scheduled[batch_index], table.scheduled_slot[batch_index] = stop, slot
        table.sampling_in_flight[batch_index] = num_sampled

    def complete(self, stop: int, slot: int, num_sampled: int) -> None:
        """Record the end of a forward: tokens before `stop` are computed, and the state is in
        `slot`. num_sampled: tokens sampled by it. The next forward may be in flight already."""
        table, batch_index = self._table, self.batch_index
        table.num_computed[batch_index], table.slot[batch_index] = stop, slot
        if num_sampled and table.num_scheduled[batch_index] == stop:
            table.sampling_in_flight[batch_index] = 0

    def complete_drafted(self, stop: int, slot: int) -> None:
        """Record the end of a forward with drafts: tokens before `stop` are computed and accepted.
        REQUIRES: no other forward of the sequence is in flight."""
        table, batch_index = self._table, self.batch_index
        table.num_computed[batch_index] = table.num_scheduled[batch_index] = stop
        table.slot[batch_index] = table.scheduled_slot[batch_index] = slot
        table.sampling_in_flight[batch_index] = 0

    def end(self) -> None:
        """End the sequence and free its batch index."""
        self._table.holders[self.batch_index] = 0
