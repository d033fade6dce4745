"""What both sides of an engine's hand-over keep of rooms: how much memory they hold, which ids
are at rest, and by which names they are known. Thread rule: the engine loop's.
"""

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import replace
from typing import Generic, TypeVar

from tasuki.engine.messages import HitBreakdown, RequestId, RoomId
from tasuki.engine.runner.base import Event, EventRecorder

MOST_ACCEPTED = 16
"""Of one decode node: as many as begin in the time that a grant takes, and no more, since each of
them holds a slot."""
MOST_PULLED = 32
"""Likewise: a pull waits for the forward in flight, and is over within the next one or two."""
_SHARE = 4
"""Their prompts together are at most this part of what fits; one is always allowed."""


class AcceptWindow:
    """Rooms that hold memory on a prefill node though nothing of them is computed yet: those that
    are accepted, and those whose beginning is pulled.

    Owns the count of one kind of them by decode node, and how many there may be. Knows no queue
    and no cache. Thread rule: the engine loop's. Invariant: a decode node that grants nothing
    keeps no more than its share of the memory.
    """

    def __init__(self, capacity_tokens: int, most: int) -> None:
        """capacity_tokens: that the cache can hold of one prompt. most: rooms of a decode node."""
        self._most = most
        self._share = capacity_tokens // _SHARE
        self._ahead: dict[str, dict[RoomId, int]] = {}
        self.left = 0
        """Rooms that were in the window and are not any more: grows when others may enter."""

    def has_room(self, peer: str, tokens: int) -> bool:
        """Whether a prompt of so many tokens may be leased for the decode node."""
        ahead = self._ahead.get(peer)
        if not ahead:
            return True
        return len(ahead) < self._most and sum(ahead.values()) + tokens <= self._share

    def enter(self, peer: str, room: RoomId, tokens: int) -> None:
        self._ahead.setdefault(peer, {})[room] = tokens

    def leave(self, peer: str, room: RoomId) -> None:
        """A forward of the room is planned, its pull is over, or there will be neither.
        Idempotent."""
        ahead = self._ahead.get(peer, {})
        if ahead.pop(room, None) is None:
            return
        self.left += 1
        if not ahead:
            del self._ahead[peer]


Item = TypeVar("Item")


class AtRestQueue(Generic[Item]):
    """Ids that a remote side may use once the device is done with them.

    A sender obeys no stream: it may write to ids, or read from them, only once all that was
    launched or copied for their last owners has ended. Thread rule: the engine loop's.

    Items leave in order, each once everything launched before its put() has ended.
    """

    def __init__(self, runner: EventRecorder, release: Callable[[Item], None]) -> None:
        self._runner = runner
        self._release = release
        self._items: deque[tuple[Event, Item]] = deque()

    def put(self, item: Item) -> None:
        """It leaves at once where the device rests already."""
        self._items.append((self._runner.record_event(), item))
        self.advance()

    def advance(self) -> None:
        """Release what is at rest by now."""
        while self._items and self._items[0][0]():
            self._release(self._items.popleft()[1])

    @property
    def waiting(self) -> bool:
        """Whether an item waits for the device."""
        return bool(self._items)


_REMEMBERED = 4096


def room_name(room: RoomId) -> RequestId:
    """How a prefill engine calls the request of a room."""
    return RequestId(f"room-{room}")


class RoomNames:
    """Requests by the rooms they were handed over in, so that what a node reports of a room becomes
    a report of its request.

    Owns a bounded memory; the oldest room goes first. Thread rule: the engine loop's.
    """

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
