"""The interface of a runner of forward plans, and the sampled tokens returned by each forward."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from tasuki.engine.forward_plan import ForwardPlan, Ints
from tasuki.model.attention_split import AttentionSplit
from tasuki.model.ops.sampling.params import TopLogprobs
from tasuki.model.ops.sampling.prompt_scores import PromptScores
from tasuki.model.ops.sampling.reference import Sampled


@dataclass(frozen=True)
class SampledTokens:
    """The sampled tokens of a forward, as columns of plain values.

    Columns have shape [n], one row for each row of the plan. tokens: int32. logprobs, margins:
    float64, as in Sampled. A row without sampling has zeros. tops: the likeliest tokens, by row, if
    wanted. scores: scores of prompt tokens, by row. behind: tokens sampled after each accepted
    draft, by row with drafts. guessed: proposed next tokens, by row with a Guess. at_index: number
    of proposed tokens kept in the runner, by row.
    """

    tokens: Ints
    logprobs: NDArray[np.float64]
    margins: NDArray[np.float64]
    tops: Mapping[int, TopLogprobs] = field(default_factory=dict)
    scores: Mapping[int, PromptScores] = field(default_factory=dict)
    behind: Mapping[int, tuple[Sampled, ...]] = field(default_factory=dict)
    guessed: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    at_index: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def nothing(cls, rows: int) -> "SampledTokens":
        """Return columns of zeros for `rows` rows, to be filled row by row."""
        return cls(np.zeros(rows, dtype=np.int32), np.zeros(rows), np.zeros(rows))

    @classmethod
    def of(cls, sampled: Iterable[Sampled | None]) -> "SampledTokens":
        """Return columns with one row for each entry; None: no token was sampled for the row."""
        found = list(sampled)
        tops = {row: token.top for row, token in enumerate(found) if token and token.top}
        all_sampled = replace(cls.nothing(len(found)), tops=tops)
        for row, token in enumerate(found):
            if token is not None:
                all_sampled.tokens[row] = token.token
                all_sampled.logprobs[row], all_sampled.margins[row] = token.logprob, token.margin
        return all_sampled

    def __len__(self) -> int:
        return len(self.tokens)

    def take(self, rows: "NDArray[np.intp] | slice") -> "SampledTokens":
        tops = self.tops
        if tops:
            taken = np.arange(len(self))[rows].tolist()
            tops = {place: tops[row] for place, row in enumerate(taken) if row in tops}
        return SampledTokens(self.tokens[rows], self.logprobs[rows], self.margins[rows], tops)

    def at(self, row: int) -> Sampled:
        """Return the row's first sampled token. REQUIRES: a token was sampled for the row."""
        return Sampled(
            int(self.tokens[row]),
            float(self.logprobs[row]),
            float(self.margins[row]),
            self.tops.get(row, ()),
        )

    def all_at(self, row: int) -> list[Sampled]:
        """Return the row's sampled tokens, in order: several if drafts were accepted. REQUIRES: a
        token was sampled for the row."""
        return [self.at(row), *self.behind.get(row, ())]

    @property
    def sound(self) -> NDArray[np.bool_]:
        """Bool [n]: True if the row's token was sampled from finite logits."""
        return np.isfinite(self.logprobs)


class DeviceLost(Exception):
    """The device cannot compute for this process any more, for any input: restart the process."""


class InFlightForward(Protocol):
    """A forward launched on the device."""

    @property
    def has_ended(self) -> bool:
        """True once the device has computed all of the forward."""

    @property
    def idle_seconds(self) -> float:
        """Seconds from the end of the previous forward to the start of this one, on the device.
        They include copies and folds (states stored after accepted drafts) in between. REQUIRES:
        result() was called."""

    @property
    def busy_seconds(self) -> float:
        """Seconds from the start of this forward to its end, on the device. REQUIRES: result() was
        called."""

    def result(self) -> SampledTokens:
        """Wait for the forward's end. Return the sampled tokens, by the plan's rows.

        Raises the forward's error. Call it once.
        """


@dataclass(frozen=True)
class RunnerSizes:
    """Sizes of a runner's buffers. batch: most requests of a forward. drafts: most drafts verified
    in a row. guesses: most drafts made by the model's draft layer for a row. split: division of a
    step's keys on a GPU."""

    batch: int
    drafts: int = 0
    guesses: int = 0
    split: AttentionSplit = AttentionSplit.SHARES


Event = Callable[[], bool]
"""A recorded event: returns True if all work launched before its recording has ended."""


class EventRecorder(Protocol):
    def record_event(self) -> Event:
        """Record an event after all launches and copies until now."""


class Runner(EventRecorder, Protocol):
    """Runs plans of forwards on a device.

    A runner sees plans (engine/forward_plan.py) and memory; no request, no prefix tree. Launching
    and reading the result are separate, so the next forward is planned while this one runs. Plans
    run in the order of their numbers, each after the previous one has ended.
    """

    @property
    def ticks(self) -> int:
        """The step counter's value after the end of all work launched so far."""

    def prepare(self) -> None:
        """Prepare the device. Called once, on the launching thread, before the first launch."""

    def check_device(self) -> None:
        """Check the device after a failed forward. Raises DeviceLost if it can run no other."""

    def launch(self, plan: ForwardPlan) -> InFlightForward:
        """Start a forward, its copies first. Raises PlanError if the plan is not the next one or
        does not match the runner's state. Other errors known by then are raised too. After an error
        nothing of the plan is in flight."""


Item = TypeVar("Item")


class AtRestQueue(Generic[Item]):
    """Items with page and slot ids, each given to another node once the device has finished with
    its ids.

    A transfer's sender obeys no CUDA stream. It may write to ids, or read from them, only after all
    launches and copies for their last owners have ended. Thread rule: the engine loop's. Items are
    released in order, each once everything launched before its put() has ended.
    """

    def __init__(self, runner: EventRecorder, release: Callable[[Item], None]) -> None:
        self._runner = runner
        self._release = release
        self._items: deque[tuple[Event, Item]] = deque()

    def put(self, item: Item) -> None:
        """Add an item. Release it immediately if the device has ended all work launched before."""
        self._items.append((self._runner.record_event(), item))
        self.advance()

    def advance(self) -> None:
        """Release the items with all earlier launched work ended by now."""
        while self._items and self._items[0][0]():
            self._release(self._items.popleft()[1])

    @property
    def waiting(self) -> bool:
        """True if an item waits for work on the device to end."""
        return bool(self._items)
