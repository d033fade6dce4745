"""The scheduler's requests: running requests, waiting requests, and each caller's share.

RunningRequests holds the running requests in the order of their start, and the columns for a
forward's rows by batch index. It owns order, columns and the callers' resources; ProgressTable owns
the token counts changed by a forward. It asks nothing of the cache. WaitingQueue and CallerShares
own the queue and each caller's share. Thread rule: the engine loop's.

Invariants:
1. A column is valid only for batch indices of requests running on this engine.
2. `prompts` holds the requests with more than the next token left to schedule, in the same order. A
   request answered here and no longer in `prompts` has one token per forward from then on, the last
   sampled one.
3. capacities[i] is the capacity of the allocation of the request at batch index i. `held` has their
   sum by caller.
"""

import math
from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, zip_longest

import numpy as np
from numpy.typing import NDArray

from tasuki.engine.forward_plan import Ints
from tasuki.engine.progress import BatchIndices, ProgressTable
from tasuki.engine.request import Active, Encoding, Prefilling, Request
from tasuki.engine.speculation.drafting import Drafting
from tasuki.pycache.layout import PAGE_TOKENS
from tasuki.pycache.prefix_cache import HybridPrefixCache

from .admission import Seats
from .scheduled_forward import AnswerRows
from .shared_prompts import Leader, LoadLeader


@dataclass
class Held:
    """Resources of one caller's running requests. rows: rows of a forward. tokens: tokens allocated
    in the arena."""

    rows: int = 0
    tokens: int = 0


class RunningRequests(Collection[Request]):
    def __init__(self, progress: ProgressTable) -> None:
        batch_indices = len(progress.holders)
        self._progress = progress
        self._batch_indices: dict[Request, int] = {}
        self._order: BatchIndices = np.empty(0, dtype=np.intp)
        """Batch indices of the running requests, by their start; invalid while _reordered."""
        self._reordered = False
        self._suspects: list[Request] = []
        """Requests from a failed forward, to be run alone; some may be cleared since."""
        self._requests: NDArray[np.object_] = np.empty(batch_indices, dtype=object)
        self._answers: NDArray[np.bool_] = np.zeros(batch_indices, dtype=np.bool_)
        self._prompt_lengths: Ints = np.zeros(batch_indices, dtype=np.int32)
        self._final_lengths: Ints = np.zeros(batch_indices, dtype=np.int32)
        self.capacities: Ints = np.zeros(batch_indices, dtype=np.int32)
        self.prompts: list[Request] = []
        self.held: dict[str, Held] = {}
        """Resources by caller, only for callers with a running request."""
        self.drafting: dict[Request, Drafting] = {}
        """The running requests with draft tokens, in the order of their start."""

    def __len__(self) -> int:
        return len(self._batch_indices)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._batch_indices)

    def __reversed__(self) -> Iterator[Request]:
        return reversed(self._batch_indices)

    def __contains__(self, request: object) -> bool:
        return request in self._batch_indices

    def add(self, request: Request) -> None:
        """Add a running request. REQUIRES: its state is Active. Raises OverflowError, without
        effect, if a length exceeds int32."""
        state = request.state
        assert isinstance(state, Active)
        batch_index = state.progress.batch_index
        # These writes may raise, so they come before any list holds the request.
        self._prompt_lengths[batch_index] = len(request.prompt)
        self._final_lengths[batch_index] = request.final_length
        self._batch_indices[request] = batch_index
        self._reordered = True
        self._requests[batch_index] = request
        self._answers[batch_index] = not isinstance(state, Prefilling)
        self.capacities[batch_index] = 0
        if isinstance(state, Prefilling):
            self.prompts.append(request)
        if request.suspect:
            self._suspects.append(request)
        if request.drafting is not None:
            self.drafting[request] = request.drafting
        self.held.setdefault(request.caller, Held()).rows += 1
        self.grown(request, state)

    def discard(self, request: Request) -> None:
        """Remove the request, in any state; ignore a request not running."""
        batch_index = self._batch_indices.pop(request, None)
        if batch_index is None:
            return
        self._reordered = True
        self._requests[batch_index] = None
        self.drafting.pop(request, None)
        if request in self.prompts:
            self.prompts.remove(request)
        held = self.held[request.caller]
        held.rows -= 1
        held.tokens -= int(self.capacities[batch_index])
        if not held.rows:
            del self.held[request.caller]

    def grown(self, request: Request, state: Active) -> None:
        """Record the new capacity of the request's allocation."""
        batch_index, capacity = self._batch_indices[request], state.allocation.capacity_tokens
        self.held[request.caller].tokens += capacity - int(self.capacities[batch_index])
        self.capacities[batch_index] = capacity

    def prompt_scheduled(self, request: Request, state: Prefilling) -> None:
        """Record the prompt's last token as scheduled in a forward. The forward samples the
        answer's first token."""
        self.prompts.remove(request)
        self._answers[self._batch_indices[request]] = state.answers_here

    def acquit(self, requests: Sequence[Request]) -> None:
        """Clear requests of suspicion, because a forward with them succeeded."""
        for request in self._suspects:
            if request in requests:
                request.suspect = False

    def of(self, batch_indices: BatchIndices) -> list[Request]:
        """Return the requests running at these batch indices."""
        found: list[Request] = self._requests[batch_indices].tolist()
        return found

    def answering(self) -> BatchIndices:
        """Return the batch indices of answers with one token to forward, if they may be in the next
        forward, in the order of the requests' start. The token may still be computed by the
        previous forward."""
        suspect = self._suspect()
        batch_indices = (
            self._in_order() if suspect is None else np.array([self._batch_indices[suspect]])
        )
        scheduled = self._progress.num_scheduled[batch_indices]
        due = self._answers[batch_indices] & (scheduled < self._final_lengths[batch_indices])
        return batch_indices if due.all() else batch_indices[due]

    def unfinished_prompts(self) -> list[Request]:
        """Return the requests with prompt tokens left to schedule. While a request of a failed
        forward runs alone, return no other."""
        suspect = self._suspect()
        if suspect is None:
            return self.prompts
        return [suspect] if suspect in self.prompts else []

    def schedule_next(self, batch_indices: BatchIndices) -> AnswerRows:
        """Schedule one token for each of these batch indices from answering(). The tokens count as
        scheduled from now on."""
        tokens = self._progress.schedule_next(batch_indices)
        stops = tokens.starts + 1
        return AnswerRows(
            self.of(batch_indices),
            batch_indices,
            self._progress.holders[batch_indices],
            tokens,
            self.capacities[batch_indices],
            stops - self._prompt_lengths[batch_indices],
            stops >= self._final_lengths[batch_indices],
        )

    def _suspect(self) -> Request | None:
        """Return a request from a failed forward, to run alone in the next forward, or None."""
        self._suspects = [
            request
            for request in self._suspects
            if request.suspect and request in self._batch_indices
        ]
        # One without its picture's rows waits for pins of the others, so they run meanwhile.
        ready = (one for one in self._suspects if not isinstance(one.state, Encoding))
        return next(ready, None)

    def _in_order(self) -> BatchIndices:
        if self._reordered:
            self._order = np.fromiter(
                self._batch_indices.values(), dtype=np.intp, count=len(self._batch_indices)
            )
            self._reordered = False
        return self._order


_TRIED = 4
"""Number of a caller's first waiting requests tried, if those before find no memory."""
_OVERTAKEN = 16
"""Number of times other requests may overtake a request without memory. After that its caller's
other requests wait for it."""

Place = tuple[int, bool, float, int, Request]


class WaitingQueue:
    """Requests waiting to be begun: one line per caller, the most urgent first, then the earliest
    due.

    Owns the place of each. Knows nothing of memory. Thread rule: the engine loop's. Invariant: a
    waiting request is either in its caller's line or parked. A parked request waits for another
    request to compute or load their common prefix. It gets its old place in the line back
    afterwards.
    """

    def __init__(self) -> None:
        self._numbers = count()
        self._places: dict[Request, Place] = {}
        self.lines: dict[str, list[Place]] = {}
        """Waiting requests by caller, each list in starting order; no list is empty."""
        self._parked: dict[Leader | LoadLeader, dict[Request, None]] = {}

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, request: object) -> bool:
        return request in self._places

    def __iter__(self) -> Iterator[Request]:
        """Yield all waiting requests: the first of each caller, then the second of each, the parked
        ones last."""
        for places in zip_longest(*self.lines.values()):
            for place in places:
                if place is not None:
                    yield place[-1]
        for parked in self._parked.values():
            yield from parked

    def stands(self, request: Request) -> bool:
        """Return True if the request waits in its caller's line, not parked."""
        return request in self and not any(request in parked for parked in self._parked.values())

    def sought(self, request: Request, start: int, length: int) -> int:
        """Return the next position after `start` in the running request's prompt with a parked
        request waiting for it. Return `length` without one."""
        positions = [leader.position for leader in self._parked if leader.request is request]
        return min((place for place in positions if place > start), default=length)

    def add(self, request: Request, *, returned: bool = False) -> None:
        """Add a request to its caller's line. returned: True if it was begun before; it goes ahead
        of requests not begun yet."""
        place = (request.priority, not returned, request.ordered_by, next(self._numbers), request)
        self._places[request] = place
        self._stand(place)

    def discard(self, request: Request) -> None:
        place = self._places.pop(request, None)
        if place is None:
            return
        for leader, parked in self._parked.items():
            if request in parked:
                del parked[request]
                if not parked:
                    del self._parked[leader]
                return
        self._leave(place)

    def missed(self, request: Request) -> None:
        """Forget a first token's due time, because it was missed. Order it by its longest wait."""
        request.first_due = math.inf
        before = self._places[request]
        place = (*before[:2], request.ordered_by, *before[3:])
        stood = self.stands(request)
        if stood:
            self._leave(before)
        self._places[request] = place
        if stood:
            self._stand(place)

    def park(self, request: Request, leader: Leader | LoadLeader) -> None:
        """Move the request out of its line until `leader` has computed or loaded their common
        prefix. Others in the line are not delayed. REQUIRES: it is in a line."""
        self._leave(self._places[request])
        self._parked.setdefault(leader, {})[request] = None

    def unpark(self) -> None:
        """Return parked requests to their place in the line if their leader has reached the common
        prefix's end, or never will."""
        for leader in [leader for leader in self._parked if leader.is_over]:
            for request in self._parked.pop(leader):
                self._stand(self._places[request])

    def tried(self, caller: str) -> int:
        """Return the number of the caller's first waiting requests to try now: 1 once the first was
        overtaken too often."""
        return 1 if self.lines[caller][0][-1].overtaken >= _OVERTAKEN else _TRIED

    def begun(self, request: Request) -> None:
        """Remove a begun request from its line. Count it as having overtaken each earlier one of
        the first _TRIED."""
        place = self._places.pop(request)
        for before in self.lines[request.caller][:_TRIED]:
            if before is place:
                break
            before[-1].overtaken += 1
        self._leave(place)

    def _stand(self, place: Place) -> None:
        insort(self.lines.setdefault(place[-1].caller, []), place)

    def _leave(self, place: Place) -> None:
        caller = place[-1].caller
        line = self.lines[caller]
        del line[bisect_left(line, place)]
        if not line:
            del self.lines[caller]


class CallerShares:
    """Each caller's share of the engine, and the choice of the request to be preempted.

    A caller's share is the larger of its part of the batch seats and its part of the arena:
    dominant resource fairness (Ghodsi et al., NSDI 2011). Changes no queue. Thread rule: the engine
    loop's. Invariant: the last request to be preempted is the oldest of the most urgent ones of the
    caller with the least share. So there is always progress.
    """

    def __init__(self, cache: HybridPrefixCache, seats: Seats) -> None:
        layout = cache.arena.layout
        self._slot_tokens = layout.pages_per_slab * PAGE_TOKENS
        self._tokens = cache.arena.slabs * self._slot_tokens
        self._seats = seats

    def least(self, callers: Sequence[str], running: RunningRequests) -> str:
        """Return the caller with the least share, to begin its request next."""
        if len(callers) == 1:
            return callers[0]
        shares = self._shares(running)
        return min(callers, key=lambda caller: shares.get(caller, 0.0))

    def victim(self, running: RunningRequests) -> Request:
        """Return the request to preempt so another may grow. It belongs to the caller with the
        largest share; it is this caller's least urgent request, the youngest of equals. Urgency is
        compared within one caller only."""
        shares = self._shares(running)
        most = max(reversed(running), key=lambda request: shares[request.caller]).caller
        return _least_urgent(request for request in reversed(running) if request.caller == most)

    def victim_for(self, waiting: WaitingQueue, running: RunningRequests) -> Request | None:
        """Return the request to preempt so a caller below an equal share may begin one. Return None
        if no caller has more, or the new request itself would exceed the equal share. Preempt
        nothing if the largest caller has a request in a hand-over."""
        callers = {*waiting.lines, *running.held}
        if len(callers) == 1 or not waiting.lines or not running:
            return None
        shares, equal = self._shares(running), 1 / len(callers)
        highest = max(shares.values())
        if highest <= equal:
            return None
        # Of equal shares, choose the caller of the longest-running request.
        most = next(request.caller for request in running if shares[request.caller] == highest)
        for caller, line in waiting.lines.items():
            needed = self._part(1, line[0][-1].next_capacity, self._seats.count)
            if caller != most and shares.get(caller, 0.0) + needed <= equal:
                theirs = [request for request in running if request.caller == most]
                return _least_urgent(reversed(theirs)) if all(map(_answers_here, theirs)) else None
        return None

    def _shares(self, running: RunningRequests) -> dict[str, float]:
        seats = self._seats.count
        return {
            caller: self._part(held.rows, held.tokens, seats)
            for caller, held in running.held.items()
        }

    def _part(self, rows: int, tokens: int, seats: int) -> float:
        """Return the used part of the engine, from 0 to 1. rows: batch seats used. tokens: tokens
        allocated in the arena. Each row holds at least one arena slot besides its tokens."""
        return max(rows / seats, (tokens + rows * self._slot_tokens) / self._tokens)


def _least_urgent(requests: Iterable[Request]) -> Request:
    """Return the least urgent request, the first one of equals."""
    return max(requests, key=lambda request: request.priority)


def _answers_here(request: Request) -> bool:
    return isinstance(request.state, Active) and request.state.answers_here
