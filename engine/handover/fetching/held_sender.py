"""Fetches as a prefill engine sees them: states that decode nodes read from here.

Owns the allocations that pin them while they are read, or loaded before from memory below the
arena. Knows no queue: what is fetched waits for no prompt. Thread rule: the engine loop's.
Invariants: what is sent is the state behind exactly the tokens that were named, under their salt,
or nothing is; what had to be loaded is sent once that was acknowledged, and refused where it is
late or wrong; it stays pinned and unchanged until end(), which the daemon posts after its sender
has drained; no more is pinned than the windows allow, of one decode node and in all.
"""

from functools import partial

from tasuki.engine import messages as m
from tasuki.engine.handover.accept_window import AcceptWindow
from tasuki.engine.handover.at_rest import AtRestQueue
from tasuki.engine.handover.base import HandoverContext
from tasuki.engine.handover.held_states import HeldState, HeldStates
from tasuki.transfer.sending.sender import Sender
from tasuki.transfer.windows.window import FinishedLayers

MOST_OF_A_NODE = 8
"""Fetches of one decode node at a time."""
MOST_IN_ALL = 32
_ALL = "all"


class HeldSender:
    def __init__(self, context: HandoverContext, sender: Sender) -> None:
        self._emit = context.emit
        self._sender = sender
        capacity = context.cache.capacity_tokens(context.working_slots)
        self._of_node = AcceptWindow(capacity, MOST_OF_A_NODE)
        self._in_all = AcceptWindow(capacity, MOST_IN_ALL)
        self._states = HeldStates(context)
        self._held: dict[m.RoomId, tuple[str, HeldState]] = {}
        self.sources = AtRestQueue(context.runner, self._accept)

    def __contains__(self, room: m.RoomId) -> bool:
        return room in self._held

    def reserve(self, message: m.FetchReserve) -> None:
        """REQUIRES: no other room has the number."""
        room, peer, tokens = message.ticket.room, message.peer, len(message.prompt)
        if not (self._of_node.has_room(peer, tokens) and self._in_all.has_room(_ALL, tokens)):
            self._emit(m.FetchRefused(room, m.FetchRefusal.BUSY))
            return
        held = self._states.hold(message.prompt, message.ticket.salt, partial(self._loaded, room))
        if held is None:
            self._emit(m.FetchRefused(room, m.FetchRefusal.NOT_HELD))
            return
        self._held[room] = peer, held
        self._of_node.enter(peer, room, tokens)
        self._in_all.enter(_ALL, room, tokens)
        if held.sent is not None:
            self.sources.put(room)

    def _loaded(self, room: m.RoomId, landed: bool) -> None:
        if landed:
            self.sources.put(room)
        else:
            self._forget(room)
            self._emit(m.FetchRefused(room, m.FetchRefusal.NOT_HELD))

    def _accept(self, room: m.RoomId) -> None:
        if room in self._held:
            self._emit(m.PrefillAccepted(room))

    def start(self, grant: m.Grant) -> None:
        """It was granted: all that the receiver lacks may leave at once."""
        _, held = self._held.get(grant.room, (None, None))
        if held is None or held.sent is None:
            return
        (pages, slot), first = held.sent, grant.first_page
        plan = FinishedLayers.long_finished(first, pages[first:], slot)
        self._sender.plan_forward(grant.room, plan)
        self._emit(m.StateHeld(grant.room))

    def end(self, room: m.RoomId) -> None:
        """The room is over and its sender has drained. Idempotent."""
        held = self._forget(room)
        if held is not None:
            self._states.let_go(held)

    def _forget(self, room: m.RoomId) -> HeldState | None:
        found = self._held.pop(room, None)
        if found is None:
            return None
        peer, held = found
        self._of_node.leave(peer, room)
        self._in_all.leave(_ALL, room)
        return held
