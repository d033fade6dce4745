"""Rooms that hold memory on a prefill node though nothing of them is computed yet: those that are
accepted, and those whose beginning is pulled.

Owns the count of one kind of them by decode node, and how many there may be. Knows no queue and no
cache. Thread rule: the engine loop's. Invariant: a decode node that grants nothing keeps no more
than its share of the memory.
"""

from tasuki.engine.messages import RoomId

MOST_ACCEPTED = 16
"""Of one decode node: as many as begin in the time that a grant takes, and no more, since each of
them holds a slot."""
MOST_PULLED = 32
"""Likewise: a pull waits for the forward in flight, and is over within the next one or two."""
_SHARE = 4
"""Their prompts together are at most this part of what fits; one is always allowed."""


class AcceptWindow:
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
