"""The progress of every running sequence's forwards, by lane (batch index).

The rows of a forward are read and advanced all at once, as columns. All other code sees one
sequence (Progress). Owns these numbers from begin() to end(). Knows no requests, tokens or pages.
Thread rule: the engine loop's.

Invariants:
1. A lane is the first working slot of an allocation, so two sequences never share one at a time.
   Sequences are numbered 1, 2, 3, ...; holders[lane] is the number of the lane's sequence, or 0.
   Lane and number together tell if a sequence still runs.
2. num_computed <= num_scheduled. With two working slots, the forward in flight never writes the
   slot of the computed tokens.
3. A Progress of an ended sequence cannot be read, because another sequence may have its lane.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .forward_plan import Ints

Lanes = NDArray[np.intp]
"""[n], or lanes as an index: numpy looks these up without a copy."""


@dataclass(frozen=True)
class NextTokens:
    """The next tokens of some lanes' sequences, columns [n]. starts: first token of the forward.
    read_index, write_index: working slots. drawn_before: the first token is still in flight."""

    starts: Ints
    read_index: Ints
    write_index: Ints
    drawn_before: NDArray[np.bool_]

    def take(self, rows: NDArray[np.intp]) -> "NextTokens":
        return NextTokens(
            self.starts[rows],
            self.read_index[rows],
            self.write_index[rows],
            self.drawn_before[rows],
        )


class ProgressTable:
    def __init__(self, lanes: int) -> None:
        self.holders: NDArray[np.int64] = np.zeros(lanes, dtype=np.int64)
        self._begun = 0
        self._slots: Ints = np.ones(lanes, dtype=np.int32)
        self.num_computed: Ints = np.zeros(lanes, dtype=np.int32)
        self.slot: Ints = np.zeros(lanes, dtype=np.int32)
        self.num_scheduled: Ints = np.zeros(lanes, dtype=np.int32)
        self.scheduled_slot: Ints = np.zeros(lanes, dtype=np.int32)
        self.sampling_in_flight: Ints = np.zeros(lanes, dtype=np.int32)

    def begin(self, working_slots: tuple[int, ...], num_computed: int, slot: int = 0) -> "Progress":
        """Begin a sequence. num_computed: its tokens without need of a forward; the state after
        them is in the working slot of index `slot`. REQUIRES: its lane is free."""
        lane = working_slots[0]
        assert self.holders[lane] == 0, f"lane {lane} has a sequence already"
        self._begun += 1
        self.holders[lane] = self._begun
        self._slots[lane] = len(working_slots)
        self.num_computed[lane] = self.num_scheduled[lane] = num_computed
        self.slot[lane] = self.scheduled_slot[lane] = slot
        self.sampling_in_flight[lane] = 0
        return Progress(self, lane, self._begun)

    def schedule_next(self, lanes: Lanes) -> NextTokens:
        """Record one more token of each sequence in a forward, with one token sampled after it.
        REQUIRES: no lane comes twice."""
        starts, read_index = self.num_scheduled[lanes], self.scheduled_slot[lanes]
        write_index = (read_index + 1) % self._slots[lanes]
        drawn_before = self.sampling_in_flight[lanes] != 0
        self.num_scheduled[lanes] = starts + 1
        self.scheduled_slot[lanes] = write_index
        self.sampling_in_flight[lanes] = 1
        return NextTokens(starts, read_index, write_index, drawn_before)

    def land_next(self, lanes: Lanes, tokens: NextTokens) -> None:
        """Record the end of a forward of schedule_next(). The next one may be in flight already.
        REQUIRES: the same sequences still have the lanes."""
        stops = tokens.starts + 1
        self.num_computed[lanes] = stops
        self.slot[lanes] = tokens.write_index
        self.sampling_in_flight[lanes] = self.num_scheduled[lanes] != stops


class Progress:
    """The progress of one sequence.

    `num_computed` tokens are definitely forwarded; the state after them is in working slot `slot`.
    `num_scheduled` also counts the tokens of the forward in flight. The state after them will be in
    `scheduled_slot`. `sampling_in_flight`: tokens sampled by this forward, with values not known
    yet. Slots are indices.
    """

    def __init__(self, table: ProgressTable, lane: int, number: int) -> None:
        self._table = table
        self._lane = lane
        self.number = number

    @property
    def lane(self) -> int:
        assert self._table.holders[self._lane] == self.number, "its sequence has ended"
        return self._lane

    @property
    def num_computed(self) -> int:
        return int(self._table.num_computed[self.lane])

    @property
    def slot(self) -> int:
        return int(self._table.slot[self.lane])

    @property
    def num_scheduled(self) -> int:
        return int(self._table.num_scheduled[self.lane])

    @property
    def scheduled_slot(self) -> int:
        return int(self._table.scheduled_slot[self.lane])

    @property
    def sampling_in_flight(self) -> int:
        return int(self._table.sampling_in_flight[self.lane])

    @property
    def settled(self) -> bool:
        """Return whether no forward is in flight."""
        return self.num_scheduled == self.num_computed

    def schedule(self, stop: int, slot: int, num_sampled: int) -> None:
        table, lane = self._table, self.lane
        table.num_scheduled[lane], table.scheduled_slot[lane] = stop, slot
        table.sampling_in_flight[lane] = num_sampled

    def land(self, stop: int, slot: int, num_sampled: int) -> None:
        """Record the end of a forward. The next one may be in flight already."""
        table, lane = self._table, self.lane
        table.num_computed[lane], table.slot[lane] = stop, slot
        if num_sampled and table.num_scheduled[lane] == stop:
            table.sampling_in_flight[lane] = 0

    def land_drafted(self, stop: int, slot: int) -> None:
        """Record the end of a forward with drafts. The tokens before `stop` were accepted.
        REQUIRES: no other forward of the sequence is in flight."""
        table, lane = self._table, self.lane
        table.num_computed[lane] = table.num_scheduled[lane] = stop
        table.slot[lane] = table.scheduled_slot[lane] = slot
        table.sampling_in_flight[lane] = 0

    def end(self) -> None:
        """End the sequence and free its lane."""
        self._table.holders[self.lane] = 0
