"""Requests that wait to be begun: a line for each caller, the most urgent of a line first, of these
the one for whom something is due first.

Owns where each of them stands; says nothing of memory. Thread rule: the engine loop's.
Invariant: a request that waits stands in its caller's line or is parked behind a sibling, never
both; who left comes back to the place that it had.
"""

import math
from bisect import bisect_left, insort
from collections.abc import Iterator
from itertools import count, zip_longest

from tasuki.engine.request import Request

from .siblings import Leader, LoadLeader

_TRIED = 4
"""Requests of a line that are tried while those before them find no room."""
_OVERTAKEN = 16
"""So often others go past a request that finds no room; then they wait with it."""

Place = tuple[int, bool, float, int, Request]


class WaitingQueue:
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
