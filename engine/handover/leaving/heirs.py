"""The states that a decode engine leaves to prefill nodes, its heirs, before it ends.

Owns what is offered when, and how much may be sent. Knows neither rooms' messages nor which heir
takes what. Thread rule: the engine loop's.
Invariants: at most ALONE rooms live at a time, and BESIDE while anything else is in flight; bytes
that may be pulled never exceed the bound; nothing begins before begin() or after end(), and what
had begun by then is counted as cut.
"""

from collections import deque

from tasuki.engine import messages as m
from tasuki.engine.handover.base import HandoverContext
from tasuki.engine.request import Request
from tasuki.pycache.prefix_cache import HybridPrefixCache

from .leaving_report import LeavingReport
from .state_line import StateLine, state_tokens
from .state_offers import StateOffers

ALONE = 16
"""States at a time. Together they have no more tokens than one heir of this node's size would let
it pull at once, should all go there: it declines the others."""
BESIDE = 2
"""The same while anything else is in flight: answers come first."""
_PART_OF_ARENA = 4
"""What heirs are sent takes at most a quarter of what this engine can hold: they have states of
their own, which it crowds."""


def bytes_to_leave(cache: HybridPrefixCache) -> int:
    return cache.arena.slabs * cache.arena.layout.slab_bytes // _PART_OF_ARENA


class Heirs(StateOffers):
    def __init__(self, context: HandoverContext) -> None:
        super().__init__(context, ALONE)
        self._left_bytes = bytes_to_leave(context.cache)
        self._struck = False
        """Some heir was refused more bytes than are left."""
        self._report = LeavingReport(context.emit)
        self._over = False
        self._line = StateLine(context.cache, context.intake)
        self._again: deque[Request] = deque()
        """Lost, and to be asked of another heir; or drawn, and without a place yet."""
        self._beside = 0
        """In flight when the line was formed."""

    @property
    def begun(self) -> bool:
        """And not over."""
        return self._report.asked and not self._over

    def begin(self, query_id: int, beside: int) -> None:
        """beside: requests in flight."""
        first = not self._report.asked
        self._report.ask(query_id)
        if self._over:
            self._report.answer(len(self._line))
        elif first:
            self._form_line(beside)

    def next(self, beside: int) -> Request | None:
        """A state to be asked of an heir now, as a request of one token behind it; the caller opens
        its room and calls opened(). None: for now, there is none."""
        if not self.begun:
            return None
        if beside < self._beside and not (self._line and beside):
            # What has ended meanwhile left the states that matter most.
            self._form_line(beside)
        if len(self._rooms) >= (BESIDE if beside else ALONE):
            return None
        request = self._drawn()
        if request is not None and not self._has_room(request):
            self._again.appendleft(request)
            return None
        return request

    def _form_line(self, beside: int) -> None:
        self._beside = beside
        self._line.form()

    def _drawn(self) -> Request | None:
        while self._again:
            request = self._again.popleft()
            if not self._line.stands(request):
                self._ended(request, m.HeirOutcome.LOST, None, "")
            elif not self._is_too_much(request):
                return request
        while self._left_bytes > 0 and (drawn := self._line.draw()) is not None:
            if not self._is_too_much(drawn):
                return drawn
        return None

    def _is_too_much(self, request: Request) -> bool:
        """Once the bound was met, what may be beyond it is offered to nobody: an heir would first
        make room for it, and lose what it has there for nothing."""
        whole = self._router.state_bytes(0, state_tokens(request))
        if not self._struck or whole <= self._left_bytes:
            return False
        self._ended(request, m.HeirOutcome.TOO_MUCH, None, "")
        return True

    def _allows(self, size: int) -> bool:
        if size > self._left_bytes:
            self._struck = True
            return False
        self._left_bytes -= size
        return True

    def _once_more(self, request: Request) -> None:
        self._again.append(request)

    def _ended(
        self, request: Request, outcome: m.HeirOutcome, pulled: m.PullReport | None, heir: str
    ) -> None:
        size = 0 if pulled is None else pulled.bytes
        self._report.ended(outcome, state_tokens(request), size, heir)

    def end_if_over(self, beside: int) -> None:
        """Answer where nothing is in flight, here or at an heir, and nothing is left."""
        if self.begun and not (beside or self._rooms or self._again):
            self._over = True
            self._report.answer(len(self._line))

    def end(self) -> tuple[m.RoomId, ...]:
        """No more; answer. Returns the rooms that live, for the caller to give up."""
        if self._over:
            return ()
        self._over = True
        living = tuple(self._rooms)
        for request in (*(room.request for room in self._rooms.values()), *self._again):
            self._ended(request, m.HeirOutcome.CUT, None, "")
        self._rooms.clear()
        self._again.clear()
        self._report.answer(len(self._line))
        return living
