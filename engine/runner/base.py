"""What runs plans, and the columns of drawn tokens that each forward returns.

Owns nothing. A runner sees plans and memory, but no request and no tree.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from tasuki.engine.forward_plan import ForwardPlan, Ints
from tasuki.model.ops.sampling.params import TopLogprobs
from tasuki.model.ops.sampling.prompt_scores import PromptScores
from tasuki.model.ops.sampling.reference import Sampled


@dataclass(frozen=True)
class DrawnTokens:
    """What a forward drew, as columns: plain values, as a process that runs plans sends them back.

    By the plan's rows, columns [n]: tokens int32, logprobs and margins float64, as in Sampled. A
    row of which nothing was to be drawn has zeros. tops: the likeliest tokens of those rows that
    want any. scores: of those rows whose prompts are scored. behind: of those rows that verify
    drafts, what was drawn behind each draft that held. guessed: of rows with a Guess, what may
    follow. on_lane: of such rows where that stays with the runner, how many tokens are there.
    """

    tokens: Ints
    logprobs: NDArray[np.float64]
    margins: NDArray[np.float64]
    tops: Mapping[int, TopLogprobs] = field(default_factory=dict)
    scores: Mapping[int, PromptScores] = field(default_factory=dict)
    behind: Mapping[int, tuple[Sampled, ...]] = field(default_factory=dict)
    guessed: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    on_lane: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def nothing(cls, rows: int) -> "DrawnTokens":
        """To be filled row by row."""
        return cls(np.zeros(rows, dtype=np.int32), np.zeros(rows), np.zeros(rows))

    @classmethod
    def of(cls, sampled: Iterable[Sampled | None]) -> "DrawnTokens":
        """A row each; None: nothing was drawn of it."""
        found = list(sampled)
        tops = {row: token.top for row, token in enumerate(found) if token and token.top}
        drawn = replace(cls.nothing(len(found)), tops=tops)
        for row, token in enumerate(found):
            if token is not None:
                drawn.tokens[row] = token.token
                drawn.logprobs[row], drawn.margins[row] = token.logprob, token.margin
        return drawn

    def __len__(self) -> int:
        return len(self.tokens)

    def take(self, rows: "NDArray[np.intp] | slice") -> "DrawnTokens":
        tops = self.tops
        if tops:
            taken = np.arange(len(self))[rows].tolist()
            tops = {place: tops[row] for place, row in enumerate(taken) if row in tops}
        return DrawnTokens(self.tokens[rows], self.logprobs[rows], self.margins[rows], tops)

    def at(self, row: int) -> Sampled:
        """REQUIRES: something was drawn of the row."""
        return Sampled(
            int(self.tokens[row]),
            float(self.logprobs[row]),
            float(self.margins[row]),
            self.tops.get(row, ()),
        )

    def all_at(self, row: int) -> list[Sampled]:
        """What was drawn of the row, in order: more than one token where drafts held. REQUIRES: as
        of at()."""
        return [self.at(row), *self.behind.get(row, ())]

    @property
    def sound(self) -> NDArray[np.bool_]:
        """[n]: whether the token was drawn from numbers."""
        return np.isfinite(self.logprobs)


class DeviceLost(Exception):
    """The device computes nothing for this process any more, whatever it is given: restart it."""


class InFlightForward(Protocol):
    """A forward that was launched."""

    @property
    def has_ended(self) -> bool:
        """Whether the device has computed all of it."""

    @property
    def idle_seconds(self) -> float:
        """From the end of the forward before to the start of this one, on the device, copies and
        folds between them included. REQUIRES: result() was called."""

    @property
    def busy_seconds(self) -> float:
        """From the start of this one to its end, on the device. REQUIRES: result() was called."""

    def result(self) -> DrawnTokens:
        """Wait for the end. What was drawn, by the plan's rows.

        Raises what the forward raised. Call it once.
        """


@dataclass(frozen=True)
class RunnerSizes:
    """batch: the most requests of a forward. drafts, guesses: of a row at most, that are verified
    and that the draft layer makes."""

    batch: int
    drafts: int = 0
    guesses: int = 0


Event = Callable[[], bool]
"""Whether all that was launched before it was recorded has ended."""


class EventRecorder(Protocol):
    def record_event(self) -> Event:
        """An event behind everything that was launched, or was to be copied, until now."""


class Runner(EventRecorder, Protocol):
    """What runs plans: the protocol of a runner, of a forward in flight and of an event.

    A runner sees plans (engine/forward_plan.py) and memory; no request, no tree. Launching and
    reading the result are apart, so that the next forward is planned while this one runs.

    Plans are run in the order of their numbers, each after the one before has ended.
    """

    @property
    def ticks(self) -> int:
        """The step counter's value once all that was launched has ended."""

    def prepare(self) -> None:
        """Once, on the thread that will launch, before it does: what else the first request would
        wait for."""

    def check_device(self) -> None:
        """After a forward has failed: raises DeviceLost where no other one can succeed here."""

    def launch(self, plan: ForwardPlan) -> InFlightForward:
        """Start a forward, its copies first. Raises PlanError where the plan is not the next one or
        does not fit what is kept here, and what else is wrong with it already; then nothing is in
        flight of it."""


Item = TypeVar("Item")


class AtRestQueue(Generic[Item]):
    """Ids that a remote side may use once the device is done with them.

    A sender obeys no stream: it may write to ids, or read from them, only once all that was
    launched or copied for their last owners has ended. Thread rule: the engine loop's.

    Items leave in order, each once everything launched before its put() has ended.
    """

    def __init__(self, runner: EventRecorder, release: Callable[[Item], None]) -> None:
        self._runner = runner
        self._release = release
        self._items: deque[tuple[Event, Item]] = deque()

    def put(self, item: Item) -> None:
        """It leaves at once where the device rests already."""
        self._items.append((self._runner.record_event(), item))
        self.advance()

    def advance(self) -> None:
        """Release what is at rest by now."""
        while self._items and self._items[0][0]():
            self._release(self._items.popleft()[1])

    @property
    def waiting(self) -> bool:
        """Whether an item waits for the device."""
        return bool(self._items)
