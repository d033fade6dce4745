"""Requests by the rooms they were handed over in, so that what a node reports of a room becomes a
report of its request.

Owns a bounded memory; the oldest room goes first. Thread rule: the engine loop's.
"""

from collections import OrderedDict
from dataclasses import replace

from tasuki.engine.messages import HitBreakdown, RequestId, RoomId

_REMEMBERED = 4096


def room_name(room: RoomId) -> RequestId:
    """How a prefill engine calls the request of a room."""
    return RequestId(f"room-{room}")


class RoomNames:
    def __init__(self) -> None:
        self._requests: OrderedDict[RequestId, RequestId] = OrderedDict()

    def note(self, room: RoomId, request: RequestId) -> None:
        self._requests[room_name(room)] = request
        if len(self._requests) > _REMEMBERED:
            self._requests.popitem(last=False)

    def told_here(self, hit: HitBreakdown) -> HitBreakdown:
        """With this node's name for the request that took the prompt's state; a room of another
        decode node's keeps its own."""
        if hit.lost is None or hit.lost.eviction is None or hit.lost.eviction.taken_by is None:
            return hit
        taker = RequestId(hit.lost.eviction.taken_by)
        eviction = replace(hit.lost.eviction, taken_by=self._requests.get(taker, taker))
        return replace(hit, lost=replace(hit.lost, eviction=eviction))
