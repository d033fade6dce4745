"""Fetches as a prefill engine sees them: states that decode nodes read from here.

Owns the allocations that pin them while they are read. Knows no queue: what is fetched waits for no
prompt. Thread rule: the engine loop's. Invariants: what is sent is the state behind exactly the
tokens that were named, under their salt, or nothing is; it stays pinned and unchanged until end(),
which the daemon posts after its sender has drained; no more is pinned than the windows allow, of
one decode node and in all.
"""

import numpy as np

from tasuki.engine import messages as m
from tasuki.engine.handover.accept_window import AcceptWindow
from tasuki.engine.handover.at_rest import AtRestQueue
from tasuki.engine.handover.base import HandoverContext
from tasuki.pycache._cpp_cache import Allocation
from tasuki.pycache.layout import PAGE_TOKENS
from tasuki.transfer.sending.sender import Sender
from tasuki.transfer.windows.window import FinishedLayers

MOST_OF_A_NODE = 8
"""Fetches of one decode node at a time."""
MOST_IN_ALL = 32
_ALL = "all"


class HeldSender:
    def __init__(self, context: HandoverContext, sender: Sender) -> None:
        self._cache = context.cache
        self._emit = context.emit
        self._sender = sender
        capacity = context.cache.capacity_tokens(context.working_slots)
        self._of_node = AcceptWindow(capacity, MOST_OF_A_NODE)
        self._in_all = AcceptWindow(capacity, MOST_IN_ALL)
        self._pinned: dict[m.RoomId, tuple[str, Allocation]] = {}
        self.sources = AtRestQueue(context.runner, self._accept)

    def __contains__(self, room: m.RoomId) -> bool:
        return room in self._pinned

    def reserve(self, message: m.FetchReserve) -> None:
        """REQUIRES: no other room has the number."""
        room, peer, tokens = message.ticket.room, message.peer, len(message.prompt)
        if not (self._of_node.has_room(peer, tokens) and self._in_all.has_room(_ALL, tokens)):
            self._emit(m.FetchRefused(room, m.FetchRefusal.BUSY))
            return
        # A match ends before a prompt's last token, so one more than what is asked for.
        prompt = np.append(message.prompt, message.prompt[-1:])
        allocation = self._cache.allocate_to_send(prompt, salt=message.ticket.salt)
        if allocation is None or allocation.cached_tokens != tokens:
            if allocation is not None:
                self._cache.release(allocation)
            self._emit(m.FetchRefused(room, m.FetchRefusal.NOT_HELD))
            return
        self._pinned[room] = peer, allocation
        self._of_node.enter(peer, room, tokens)
        self._in_all.enter(_ALL, room, tokens)
        self.sources.put(room)

    def _accept(self, room: m.RoomId) -> None:
        if room in self._pinned:
            self._emit(m.PrefillAccepted(room))

    def start(self, grant: m.Grant) -> None:
        """It was granted: all that the receiver lacks may leave at once."""
        pinned = self._pinned.get(grant.room)
        if pinned is None:
            return
        _, allocation = pinned
        pages: list[int] = allocation.pages.tolist()
        if allocation.source_page is not None:
            pages.append(allocation.source_page)
        assert len(pages) == -(-allocation.cached_tokens // PAGE_TOKENS)
        assert allocation.cow_source_slot is not None
        first = grant.first_page
        lacking = tuple(pages[first:])
        plan = FinishedLayers.long_finished(first, lacking, allocation.cow_source_slot)
        self._sender.plan_forward(grant.room, plan)
        self._emit(m.StateHeld(grant.room))

    def end(self, room: m.RoomId) -> None:
        """The room is over and its sender has drained. Idempotent."""
        pinned = self._pinned.pop(room, None)
        if pinned is None:
            return
        peer, allocation = pinned
        self._of_node.leave(peer, room)
        self._in_all.leave(_ALL, room)
        self._cache.release(allocation)
