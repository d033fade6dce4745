"""What one forward computes, kept by the engine until that forward lands.

Thread rule: the engine loop's.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tasuki.engine.forward_plan import Ints
from tasuki.engine.progress import Lanes, NextTokens, ProgressTable
from tasuki.engine.request import Active, PlannedCheckpoint, Request
from tasuki.engine.speculation.step_costs import StepShape


@dataclass(slots=True)
class ScheduledSequence:
    """What one forward computes of one request, as the engine remembers it until the forward lands.

    Tokens [start, stop) of a running request; checkpoints that fall into it, with their slots.

    The forward reads the working slot of index read_index and writes the one of write_index.
    num_sampled: tokens that it draws; some only where it reaches the last token there is. drafts:
    those of its tokens that nobody drew yet, its last ones; then it draws at most num_sampled, and
    how many of its tokens count shows when it lands. first_guesses: as many as there are drafts
    where the model's draft layer is to make them before the forward, and they stand for nothing
    yet. drafts_on_lane: whether they stand for those that the runner has. guesses: tokens that it
    is to propose behind what is drawn.
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
    drafts_on_lane: bool = False
    guesses: int = 0

    @property
    def write_slot(self) -> int:
        return self.active.slots[self.write_index]

    @property
    def lane(self) -> int:
        """Where the runner keeps the tokens drawn last: no two allocations share a working slot."""
        return self.active.slots[0]

    @property
    def decodes(self) -> bool:
        """Whether it is one token of an answer given here, so that it may run in a decode graph."""
        one = self.num_sampled > 0 and self.stop - self.start == 1
        return one and self.active.answers_here and not self.checkpoints

    @property
    def live(self) -> bool:
        """Whether the request still runs on the allocation that this was planned for."""
        state = self.request.state
        return isinstance(state, Active) and state.allocation is self.active.allocation


@dataclass(frozen=True)
class AnswerRows:
    """What one forward computes, as the engine remembers it until the forward lands: one token of
    each of many answers, as columns, then tokens of answers with drafts behind them, then parts of
    prompts.

    A row each, columns [n]: of requests that answer, one token, behind which one is drawn. holders:
    as ProgressTable's. row_limits: tokens that the allocations hold. indices: where in the answer
    what is drawn will stand; is_last: no more are wanted behind it.
    """

    requests: Sequence[Request]
    lanes: Lanes
    holders: NDArray[np.int64]
    tokens: NextTokens
    row_limits: Ints
    indices: Ints
    is_last: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.lanes)

    def live(self, progress: ProgressTable) -> NDArray[np.bool_]:
        """[n]: whose requests still run on the allocations that this was planned for."""
        still: NDArray[np.bool_] = progress.holders[self.lanes] == self.holders
        return still

    def requests_where(self, rows: NDArray[np.bool_]) -> list[Request]:
        """rows [n]."""
        return [self.requests[row] for row in rows.nonzero()[0].tolist()]

    def take(self, rows: NDArray[np.intp]) -> "AnswerRows":
        return AnswerRows(
            [self.requests[row] for row in rows.tolist()],
            self.lanes[rows],
            self.holders[rows],
            self.tokens.take(rows),
            self.row_limits[rows],
            self.indices[rows],
            self.is_last[rows],
        )

    def sequences(self) -> list[ScheduledSequence]:
        """The same, one by one. REQUIRES: all are live."""
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
    """Rows of answers come before those of answers with drafts, and these before prompts'."""

    answers: AnswerRows
    prompts: Sequence[ScheduledSequence]
    drafted: Sequence[ScheduledSequence] = ()

    def __len__(self) -> int:
        return len(self.answers) + len(self.drafted) + len(self.prompts)

    @property
    def sequences(self) -> list[ScheduledSequence]:
        """Behind the answers' rows, in the order of the rows."""
        return [*self.drafted, *self.prompts]

    @property
    def shape(self) -> StepShape:
        """Of its answers."""
        lengths = [1 + len(item.drafts) for item in self.drafted if item.drafts]
        plain = len(self.answers) + len(self.drafted) - len(lengths)
        return StepShape(plain, len(lengths), max(lengths, default=1))

    @property
    def prompt_tokens(self) -> int:
        """Tokens of prompts that it computes."""
        return sum(item.stop - item.start for item in self.prompts if not item.decodes)

    def live_sequences(self, progress: ProgressTable) -> list[ScheduledSequence]:
        """What of it may still count, one by one."""
        live = self.answers.take(self.answers.live(progress).nonzero()[0])
        return live.sequences() + [item for item in self.sequences if item.live]
