"""How much of the engine each caller holds, and who gives way to whom.

A caller's share is the larger of its part of the seats and its part of the arena: dominant resource
fairness (Ghodsi et al., NSDI 2011). Has no part in queues. Thread rule: the engine loop's.
Invariant: of the caller who holds least the most urgent of those who run, the oldest of them, gives
way last; so there is always progress.
"""

from collections.abc import Iterable, Sequence

from tasuki.engine.admission.seats import Seats
from tasuki.engine.request import Active, Request
from tasuki.pycache.layout import PAGE_TOKENS
from tasuki.pycache.prefix_cache import HybridPrefixCache

from .running_requests import RunningRequests
from .waiting_queue import WaitingQueue


class CallerShares:
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
