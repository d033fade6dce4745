"""Rooms that hold memory on a prefill node, or had it filled by a pull, though nothing of them is
computed yet.

Owns the count of them by decode node, and how many there may be. Knows no queue and no cache.
Thread rule: the engine loop's. Invariant: a decode node that grants nothing keeps no more than its
share of the memory.
"""

from tasuki.engine.messages import RoomId

_MOST_ROOMS = 16
"""Of one decode node: as many as begin in the time that a grant takes, and no more, since each of
them holds a slot."""
_SHARE = 4
"""Their prompts together are at most this part of what fits; one is always allowed."""


class AcceptWindow:
    def __init__(self, capacity_tokens: int) -> None:
        """capacity_tokens: that the cache can hold of one prompt."""
        self._share = capacity_tokens // _SHARE
        self._ahead: dict[str, dict[RoomId, int]] = {}
        self.left = 0
        """Rooms that were in the window and are not any more: grows when others may enter."""

    def holds(self, peer: str, room: RoomId) -> bool:
        return room in self._ahead.get(peer, {})

    def has_room(self, peer: str, tokens: int) -> bool:
        """Whether a prompt of so many tokens may be leased for the decode node."""
        ahead = self._ahead.get(peer)
        if not ahead:
            return True
        return len(ahead) < _MOST_ROOMS and sum(ahead.values()) + tokens <= self._share

    def enter(self, peer: str, room: RoomId, tokens: int) -> None:
        self._ahead.setdefault(peer, {})[room] = tokens

    def leave(self, peer: str, room: RoomId) -> None:
        """A forward of the room is planned, or there will be none. Idempotent."""
        ahead = self._ahead.get(peer, {})
        if ahead.pop(room, None) is None:
            return
        self.left += 1
        if not ahead:
            del self._ahead[peer]
