"""The running requests, in the order in which they were begun, and what a forward's rows need of
all of them, as columns by lane.

Owns order, columns and what callers hold; the numbers that a forward changes are the
ProgressTable's. Asks nothing of the cache. Thread rule: the engine loop's.
Invariants:
1. A column means something for the lanes of requests that run here, and for no others.
2. `prompts` are those of which more than the next token is yet to be scheduled, in the same order.
   Who left them to be answered here has one token a forward from then on, the last one drawn.
3. capacities[lane] is what the request's allocation holds, and `held` their sum by caller.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tasuki.engine.forward_plan import Ints
from tasuki.engine.progress import Lanes, ProgressTable
from tasuki.engine.request import Active, Prefilling, Request
from tasuki.engine.speculation.drafting import Drafting

from .scheduled_forward import AnswerRows


@dataclass
class Held:
    """By the running requests of one caller: rows of a forward, tokens of the arena."""

    rows: int = 0
    tokens: int = 0


class RunningRequests(Collection[Request]):
    def __init__(self, progress: ProgressTable) -> None:
        lanes = len(progress.holders)
        self._progress = progress
        self._lanes: dict[Request, int] = {}
        self._order: Lanes = np.empty(0, dtype=np.intp)
        """Their lanes; of no meaning while _reordered."""
        self._reordered = False
        self._suspects: list[Request] = []
        """Maybe some that are suspect no more."""
        self._requests: NDArray[np.object_] = np.empty(lanes, dtype=object)
        self._answers: NDArray[np.bool_] = np.zeros(lanes, dtype=np.bool_)
        self._prompt_lengths: Ints = np.zeros(lanes, dtype=np.int32)
        self._final_lengths: Ints = np.zeros(lanes, dtype=np.int32)
        self.capacities: Ints = np.zeros(lanes, dtype=np.int32)
        self.prompts: list[Request] = []
        self.held: dict[str, Held] = {}
        """By caller; none is empty."""
        self.drafting: dict[Request, Drafting] = {}
        """Of those for whose answers something may be drafted, in the same order."""

    def __len__(self) -> int:
        return len(self._lanes)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._lanes)

    def __reversed__(self) -> Iterator[Request]:
        return reversed(self._lanes)

    def __contains__(self, request: object) -> bool:
        return request in self._lanes

    def add(self, request: Request) -> None:
        """REQUIRES: it is Active."""
        state = request.state
        assert isinstance(state, Active)
        lane = state.progress.lane
        self._lanes[request] = lane
        self._reordered = True
        self._requests[lane] = request
        self._answers[lane] = not isinstance(state, Prefilling)
        self._prompt_lengths[lane] = len(request.prompt)
        self._final_lengths[lane] = request.final_length
        self.capacities[lane] = 0
        if isinstance(state, Prefilling):
            self.prompts.append(request)
        if request.suspect:
            self._suspects.append(request)
        if request.drafting is not None:
            self.drafting[request] = request.drafting
        self.held.setdefault(request.caller, Held()).rows += 1
        self.grown(request, state)

    def discard(self, request: Request) -> None:
        """Whatever its state is by now."""
        lane = self._lanes.pop(request, None)
        if lane is None:
            return
        self._reordered = True
        self._requests[lane] = None
        self.drafting.pop(request, None)
        if request in self.prompts:
            self.prompts.remove(request)
        held = self.held[request.caller]
        held.rows -= 1
        held.tokens -= int(self.capacities[lane])
        if not held.rows:
            del self.held[request.caller]

    def grown(self, request: Request, state: Active) -> None:
        """Its allocation holds more."""
        lane, capacity = self._lanes[request], state.allocation.capacity_tokens
        self.held[request.caller].tokens += capacity - int(self.capacities[lane])
        self.capacities[lane] = capacity

    def prompt_scheduled(self, request: Request, state: Prefilling) -> None:
        """The last token of its prompt is in a forward, which draws the first of the answer."""
        self.prompts.remove(request)
        self._answers[self._lanes[request]] = state.answers_here

    def acquit(self, requests: Sequence[Request]) -> None:
        """A forward of theirs has succeeded, so none of them is suspect any more."""
        for request in self._suspects:
            if request in requests:
                request.suspect = False

    def of(self, lanes: Lanes) -> list[Request]:
        """Who runs there."""
        found: list[Request] = self._requests[lanes].tolist()
        return found

    def answering(self) -> Lanes:
        """In order the lanes of those of whom one token, drawn or being drawn, is to be forwarded,
        and may be in the next forward."""
        suspect = self._suspect()
        lanes = self._in_order() if suspect is None else np.array([self._lanes[suspect]])
        scheduled = self._progress.num_scheduled[lanes]
        due = self._answers[lanes] & (scheduled < self._final_lengths[lanes])
        return lanes if due.all() else lanes[due]

    def unfinished_prompts(self) -> list[Request]:
        """Those of `prompts` that may be in the next forward."""
        suspect = self._suspect()
        if suspect is None:
            return self.prompts
        return [suspect] if suspect in self.prompts else []

    def schedule_next(self, lanes: Lanes) -> AnswerRows:
        """One token of each of these, of answering(), which count as scheduled from here on."""
        tokens = self._progress.schedule_next(lanes)
        stops = tokens.starts + 1
        return AnswerRows(
            self.of(lanes),
            lanes,
            self._progress.holders[lanes],
            tokens,
            self.capacities[lanes],
            stops - self._prompt_lengths[lanes],
            stops >= self._final_lengths[lanes],
        )

    def _suspect(self) -> Request | None:
        """Who is to have the next forward alone."""
        self._suspects = [
            request for request in self._suspects if request.suspect and request in self._lanes
        ]
        return self._suspects[0] if self._suspects else None

    def _in_order(self) -> Lanes:
        if self._reordered:
            self._order = np.fromiter(self._lanes.values(), dtype=np.intp, count=len(self._lanes))
            self._reordered = False
        return self._order
