"""The states that a decode engine leaves to prefill nodes, its heirs, before it ends.

Owns the rooms in which they are offered, and how much may be sent. Knows neither rooms' messages
nor which heir takes what. Thread rule: the engine loop's.
Invariants: at most ALONE rooms live at a time, of no more tokens than one heir lets a node pull,
and BESIDE while anything else is in flight; bytes that may be pulled never exceed the bound;
nothing begins before begin() or after end(), and what had begun by then is counted as cut.
"""

from collections import Counter, deque
from dataclasses import dataclass

from tasuki.engine import messages as m
from tasuki.engine.handover.accept_window import AcceptWindow
from tasuki.engine.handover.base import HandoverContext
from tasuki.engine.request import Request
from tasuki.pycache.layout import PAGE_TOKENS

from .state_line import StateLine, state_tokens

ALONE = 16
"""Rooms at a time. Together they have no more tokens than one heir of this node's size would let it
pull at once, should all go there: it declines the others."""
BESIDE = 2
"""The same while anything else is in flight: answers come first."""
_PART_OF_ARENA = 4
"""What heirs are sent takes at most a quarter of what this engine can hold: they have states of
their own, which it crowds."""
_HEIR = "heir"
"""Whoever it is: they share the window."""


@dataclass
class _Room:
    request: Request
    bytes: int = 0
    """That its heir was allowed to pull; 0 before."""
    refused: m.HeirOutcome = m.HeirOutcome.DECLINED
    """What became of it where nothing is pulled."""


class Heirs:
    def __init__(self, context: HandoverContext) -> None:
        self._router = context.router
        self._emit = context.emit
        arena = context.cache.arena
        self._left_bytes = arena.slabs * arena.layout.slab_bytes // _PART_OF_ARENA
        self._struck = False
        """Some heir was refused more bytes than are left."""
        self._asked: list[int] = []
        """The queries that wait for the end."""
        self._over = False
        self._line = StateLine(context.cache, context.intake)
        self._again: deque[Request] = deque()
        """Lost, and to be asked of another heir; or drawn, and without a place yet."""
        self._rooms: dict[m.RoomId, _Room] = {}
        self._window = AcceptWindow(context.cache.capacity_tokens(context.working_slots), ALONE)
        self._beside = 0
        """In flight when the line was formed."""
        self._outcomes: Counter[m.HeirOutcome] = Counter()
        self._tokens = self._bytes = 0

    @property
    def begun(self) -> bool:
        """And not over."""
        return bool(self._asked) and not self._over

    def begin(self, query_id: int, beside: int) -> None:
        """beside: requests in flight."""
        self._asked.append(query_id)
        if self._over:
            self._answer()
        elif len(self._asked) == 1:
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
        if request is not None and not self._window.has_room(_HEIR, len(request.prompt)):
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
                self._count(m.HeirOutcome.LOST, request)
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
        self._count(m.HeirOutcome.TOO_MUCH, request)
        return True

    def opened(self, room: m.RoomId, request: Request) -> None:
        self._rooms[room] = _Room(request)
        self._window.enter(_HEIR, room, len(request.prompt))

    def may_pull(self, asked: m.PullAsked) -> bool:
        """Whether what the room's heir lacks is within the bound; it counts from then on."""
        room = self._rooms[asked.room]
        size = self._router.state_bytes(asked.first_page * PAGE_TOKENS, asked.tokens)
        if size > self._left_bytes:
            self._struck = True
            room.refused = m.HeirOutcome.TOO_MUCH
            return False
        self._left_bytes -= size
        room.bytes = size
        return True

    def gone(self, room: m.RoomId) -> None:
        """What the room's heir asked for is here no more."""
        self._rooms[room].bytes = 0
        self._rooms[room].refused = m.HeirOutcome.LOST

    def is_pulled(self, room: m.RoomId) -> bool:
        """Whether its heir was given what it lacked: else it would compute it."""
        return self._rooms[room].bytes > 0

    def taken(self, room: m.RoomId, pulled: m.PullReport | None, heir: str) -> None:
        """The room's heir has a token behind the state, having pulled so much."""
        request = self._closed(room).request
        if pulled is None:
            self._count(m.HeirOutcome.LOST, request)
            return
        self._tokens += pulled.tokens
        self._bytes += pulled.bytes
        self._count(m.HeirOutcome.TAKEN, request, pulled.bytes, heir)

    def held(self, room: m.RoomId) -> None:
        self._count(m.HeirOutcome.HELD, self._closed(room).request)

    def refused(self, room: m.RoomId) -> None:
        """The room's heir pulls nothing."""
        over = self._closed(room)
        self._count(over.refused, over.request)

    def lost(self, room: m.RoomId, elsewhere: bool) -> None:
        """elsewhere: another heir may be asked."""
        request = self._closed(room).request
        if elsewhere:
            self._again.append(request)
        else:
            self._count(m.HeirOutcome.LOST, request)

    def _closed(self, room: m.RoomId) -> _Room:
        self._window.leave(_HEIR, room)
        return self._rooms.pop(room)

    def end_if_over(self, beside: int) -> None:
        """Answer where nothing is in flight, here or at an heir, and nothing is left."""
        if self.begun and not (beside or self._rooms or self._again):
            self._over = True
            self._answer()

    def end(self) -> tuple[m.RoomId, ...]:
        """No more; answer. Returns the rooms that live, for the caller to give up."""
        if self._over:
            return ()
        self._over = True
        living = tuple(self._rooms)
        for request in (*(room.request for room in self._rooms.values()), *self._again):
            self._count(m.HeirOutcome.CUT, request)
        self._rooms.clear()
        self._again.clear()
        self._answer()
        return living

    def _count(
        self, outcome: m.HeirOutcome, request: Request, size: int = 0, heir: str = ""
    ) -> None:
        self._outcomes[outcome] += 1
        self._emit(m.StateLeft(outcome, state_tokens(request), size, heir))

    def _answer(self) -> None:
        asked, self._asked = self._asked, []
        states = dict(self._outcomes)
        for query_id in asked:
            left = m.LeftToHeirs(query_id, states, self._tokens, self._bytes, len(self._line))
            self._emit(left)
