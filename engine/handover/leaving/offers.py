"""Every state that a decode engine offers to prefill nodes, in a room each: its own where it ends,
and those of prefill nodes that end.

Owns no room: it asks for them, and gives them up. Thread rule: the engine loop's. Invariant: an
heir that pulls nothing is given no grant, since it has the state, or would compute it.
"""

from tasuki.engine import messages as m
from tasuki.engine.handover.base import HandoverContext
from tasuki.engine.handover.fetching.fetches import Fetches
from tasuki.engine.handover.receiving.decode_room import DecodeRoom
from tasuki.engine.handover.receiving.decode_rooms import DecodeRooms
from tasuki.engine.request import Aborted, Finished, Request

from .heirs import Heirs
from .passed_on import PassedOn
from .state_offers import StateOffers


class Offers:
    def __init__(self, context: HandoverContext, rooms: DecodeRooms, fetches: Fetches) -> None:
        self._cache = context.cache
        self._emit = context.emit
        self._rooms = rooms
        self._heirs = Heirs(context)
        self._passed_on = PassedOn(context, fetches)

    def leave(self, query_id: int, beside: int) -> None:
        """Leave what is here to heirs. beside: requests in flight."""
        self._heirs.begin(query_id, beside)

    def pass_on(self, message: m.PassOn) -> None:
        self._passed_on.take(message)

    def fetched(self, request: Request) -> None:
        """A state that is passed on: its fetch is over, however it ended."""
        self._passed_on.fetched(request)

    def advance(self, available: bool, beside: int) -> None:
        """Offer as many as may be. available: whether a prefill node is connected. beside: requests
        in flight."""
        if not (available or beside) and self._heirs.begun:
            self.end_leaving()
        while available and (own := self._heirs.next(beside)) is not None:
            self._ask(self._heirs, own)
        self._heirs.end_if_over(beside)
        while (passed := self._passed_on.next(available)) is not None:
            self._ask(self._passed_on, passed)

    def _ask(self, offers: StateOffers, request: Request) -> None:
        match = self._cache.match(request.prompt, request.salt)
        offers.opened(self._rooms.ask(request, match), request)

    def _of(self, room: m.RoomId) -> StateOffers:
        return self._passed_on if room in self._passed_on else self._heirs

    def may_pull(self, message: m.PullAsked) -> bool:
        """Whether the room's heir may pull what it asks for; it is refused where not."""
        allowed = self._of(message.room).may_pull(message)
        if not allowed:
            self._emit(m.PullRefused(message.room, "as much was left to heirs as may be"))
        return allowed

    def gone(self, room: m.RoomId) -> None:
        """What its heir asked for is here no more."""
        self._of(room).gone(room)

    def is_pulled(self, room: DecodeRoom) -> bool:
        """Whether its heir pulls the state; the room is over where not."""
        offers = self._of(room.id)
        if offers.is_pulled(room.id):
            return True
        self._emit(m.HandoverCancelled(room.id))
        offers.refused(room.id)
        self._end(room, Finished())
        return False

    def taken(self, room: DecodeRoom, message: m.RemoteReady) -> None:
        """Its heir has a token behind the state."""
        self._of(room.id).taken(room.id, message.pulled, message.prefilled_on)
        self._end(room, Finished())

    def held(self, room_id: m.RoomId) -> None:
        """Its heir has the state already."""
        room = self._rooms.live(room_id)
        if room is not None:
            self._of(room_id).held(room_id)
            self._end(room, Finished())

    def lost(self, room_id: m.RoomId, elsewhere: bool) -> None:
        """The room was lost. elsewhere: another heir may be asked."""
        self._of(room_id).lost(room_id, elsewhere)

    def end_leaving(self) -> None:
        for room_id in self._heirs.end():
            self._emit(m.HandoverCancelled(room_id))
            room = self._rooms.live(room_id)
            assert room is not None
            self._end(room, Aborted())

    def _end(self, room: DecodeRoom, end: Aborted | Finished) -> None:
        self._rooms.give_up(room)
        room.request.move(end)
