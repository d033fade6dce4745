"""Requests that wait, and the share of the engine that each caller holds.

Owns the queue and each caller's share. Thread rule: the engine loop's.
"""

import math
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from itertools import count, zip_longest

from tasuki.engine.request import Active, Request
from tasuki.pycache.layout import PAGE_TOKENS
from tasuki.pycache.prefix_cache import HybridPrefixCache

from .admission import Seats
from .running_requests import RunningRequests
from .shared_prompts import Leader, LoadLeader

_TRIED = 4
"""Requests of a line that are tried while those before them find no room."""
_OVERTAKEN = 16
"""So often others go past a request that finds no room; then they wait with it."""

Place = tuple[int, bool, float, int, Request]


class WaitingQueue:
    """Requests that wait to be begun: a line for each caller, the most urgent of a line first, of
    these the one for whom something is due first.

    Owns where each of them stands; says nothing of memory. Thread rule: the engine loop's.
    Invariant: a request that waits stands in its caller's line or is parked behind a sibling, never
    both; who left comes back to the place that it had.
    """

    def __init__(self) -> None:
        self._numbers = count()
        self._places: dict[Request, Place] = {}
        self.lines: dict[str, list[Place]] = {}
        """By caller, each in the order in which its requests are to be begun; none is empty."""
        self._parked: dict[Leader | LoadLeader, dict[Request, None]] = {}

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, request: object) -> bool:
        return request in self._places

    def __iter__(self) -> Iterator[Request]:
        """All of them: the first of each line, then the second of each, the parked ones last."""
        for places in zip_longest(*self.lines.values()):
            for place in places:
                if place is not None:
                    yield place[-1]
        for parked in self._parked.values():
            yield from parked

    def stands(self, request: Request) -> bool:
        """Whether it may be tried: it waits, and behind no sibling."""
        return request in self and not any(request in parked for parked in self._parked.values())

    def sought(self, request: Request, start: int, length: int) -> int:
        """Up to where others need the tokens [start, length) of a request that runs."""
        positions = [leader.position for leader in self._parked if leader.request is request]
        return min((place for place in positions if place > start), default=length)

    def add(self, request: Request, *, returned: bool = False) -> None:
        """returned: it has waited its turn already, and stands before those who have not."""
        place = (
            request.priority,
            not returned,
            request.ordered_by,
            next(self._numbers),
            request,
        )
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
        """Its first token will be late: it stands where it would if none had been due."""
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
        """Let it wait behind a sibling, in nobody's way. REQUIRES: it stands in a line."""
        self._leave(self._places[request])
        self._parked.setdefault(leader, {})[request] = None

    def unpark(self) -> None:
        """Whoever's sibling has come far enough, or will not, takes its place in its line again."""
        for leader in [leader for leader in self._parked if leader.is_over]:
            for request in self._parked.pop(leader):
                self._stand(self._places[request])

    def tried(self, caller: str) -> int:
        """How many of the line, from its first, may be tried now."""
        return 1 if self.lines[caller][0][-1].overtaken >= _OVERTAKEN else _TRIED

    def begun(self, request: Request) -> None:
        """It left its line; those before it were overtaken."""
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
    """How much of the engine each caller holds, and who gives way to whom.

    A caller's share is the larger of its part of the seats and its part of the arena: dominant
    resource fairness (Ghodsi et al., NSDI 2011). Has no part in queues. Thread rule: the engine
    loop's. Invariant: of the caller who holds least the most urgent of those who run, the oldest of
    them, gives way last; so there is always progress.
    """

    def __init__(self, cache: HybridPrefixCache, seats: Seats) -> None:
        layout = cache.arena.layout
        self._slot_tokens = layout.pages_per_slab * PAGE_TOKENS
        self._tokens = cache.arena.slabs * self._slot_tokens
        self._seats = seats

    def least(self, callers: Sequence[str], running: RunningRequests) -> str:
        """Whose turn it is."""
        if len(callers) == 1:
            return callers[0]
        shares = self._shares(running)
        return min(callers, key=lambda caller: shares.get(caller, 0.0))

    def victim(self, running: RunningRequests) -> Request:
        """Who gives way so that another one may grow: of the caller who holds most the least
        urgent, and of these the youngest. What a caller calls urgent takes nothing from others."""
        shares = self._shares(running)
        most = max(reversed(running), key=lambda request: shares[request.caller]).caller
        return _least_urgent(request for request in reversed(running) if request.caller == most)

    def victim_for(self, waiting: WaitingQueue, running: RunningRequests) -> Request | None:
        """Who gives way so that a caller with less than an equal part may begin; None where nobody
        has more, or what begins would have more itself. No hand-over under way gives way."""
        callers = {*waiting.lines, *running.held}
        if len(callers) == 1 or not waiting.lines or not running:
            return None
        shares, equal = self._shares(running), 1 / len(callers)
        highest = max(shares.values())
        if highest <= equal:
            return None
        # Of equals the one who has run longest.
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
        """Of the engine. Each row has a slot of the arena beside its tokens, at least."""
        return max(rows / seats, (tokens + rows * self._slot_tokens) / self._tokens)


def _least_urgent(requests: Iterable[Request]) -> Request:
    """The first of them."""
    return max(requests, key=lambda request: request.priority)


def _answers_here(request: Request) -> bool:
    return isinstance(request.state, Active) and request.state.answers_here
