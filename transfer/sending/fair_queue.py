"""Whose window leaves next: rooms share a sender by bytes, not by windows.

Start-time fair queuing: a room's turn comes when the bytes it was served, counted from when it last
had something to send, are the fewest. Owns the virtual time; knows neither links nor layers. Thread
rule: the transfer thread. Invariant: of rooms that always have a window to post, none is ahead of
another by more than one window's bytes.
"""

from collections.abc import Sequence

from .outgoing_room import OutgoingRoom


class FairQueue:
    def __init__(self) -> None:
        self._now = 0

    def next(self, rooms: Sequence[OutgoingRoom]) -> OutgoingRoom:
        """REQUIRES: rooms is not empty, and each could post a window. The first of equals."""
        return min(rooms, key=self._start)

    def served(self, room: OutgoingRoom, size: int) -> None:
        """The room whose turn it was posted `size` bytes."""
        # An idle room saves nothing up: it starts where the others are.
        self._now = self._start(room)
        room.served_until = self._now + size

    def _start(self, room: OutgoingRoom) -> int:
        return max(self._now, room.served_until)
