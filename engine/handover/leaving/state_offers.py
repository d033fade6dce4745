"""Rooms of one token behind a state, in which prefill nodes that become its heirs pull that.

Owns the rooms and what each heir may pull; who feeds them decides which states, how many, and what
an outcome means. Thread rule: the engine loop's. Invariants: rooms that live have no more tokens
than one heir lets a node pull, and are at most as many as may; each ends with one outcome, or is
tried once more.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from tasuki.engine import messages as m
from tasuki.engine.handover.accept_window import AcceptWindow
from tasuki.engine.handover.base import HandoverContext
from tasuki.engine.request import Request
from tasuki.pycache.layout import PAGE_TOKENS

_HEIR = "heir"
"""Whoever it is: they share the window."""


@dataclass
class _Room:
    request: Request
    bytes: int = 0
    """That its heir was allowed to pull; 0 before."""
    refused: m.HeirOutcome = m.HeirOutcome.DECLINED
    """What became of it where nothing is pulled."""


class StateOffers(ABC):
    def __init__(self, context: HandoverContext, most: int) -> None:
        """most: rooms at a time."""
        self._router = context.router
        self._emit = context.emit
        self._rooms: dict[m.RoomId, _Room] = {}
        self._window = AcceptWindow(context.cache.capacity_tokens(context.working_slots), most)

    def __contains__(self, room: m.RoomId) -> bool:
        return room in self._rooms

    @abstractmethod
    def _ended(
        self, request: Request, outcome: m.HeirOutcome, pulled: m.PullReport | None, heir: str
    ) -> None:
        """What became of the state. pulled, heir: where it was taken, else nothing."""

    @abstractmethod
    def _once_more(self, request: Request) -> None:
        """Its room was lost, and another heir may be asked."""

    def _allows(self, size: int) -> bool:
        """Whether a heir may pull so many bytes; they count from then on."""
        return True

    def _has_room(self, request: Request) -> bool:
        return self._window.has_room(_HEIR, len(request.prompt))

    def opened(self, room: m.RoomId, request: Request) -> None:
        self._rooms[room] = _Room(request)
        self._window.enter(_HEIR, room, len(request.prompt))

    def may_pull(self, asked: m.PullAsked) -> bool:
        """Whether what the room's heir lacks is within the bounds."""
        room = self._rooms[asked.room]
        size = self._router.state_bytes(asked.first_page * PAGE_TOKENS, asked.tokens)
        if not self._allows(size):
            room.refused = m.HeirOutcome.TOO_MUCH
            return False
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
            self._ended(request, m.HeirOutcome.LOST, None, "")
        else:
            self._ended(request, m.HeirOutcome.TAKEN, pulled, heir)

    def held(self, room: m.RoomId) -> None:
        self._ended(self._closed(room).request, m.HeirOutcome.HELD, None, "")

    def refused(self, room: m.RoomId) -> None:
        """The room's heir pulls nothing."""
        over = self._closed(room)
        self._ended(over.request, over.refused, None, "")

    def lost(self, room: m.RoomId, elsewhere: bool) -> None:
        """elsewhere: another heir may be asked."""
        request = self._closed(room).request
        if elsewhere:
            self._once_more(request)
        else:
            self._ended(request, m.HeirOutcome.LOST, None, "")

    def _closed(self, room: m.RoomId) -> _Room:
        self._window.leave(_HEIR, room)
        return self._rooms.pop(room)
