"""The transfers of one kind that are not over.

Owns them by key. Knows nothing of what they do. Thread rule: the event loop. Invariant: a room is
here from start() until it is over, and is gone before `over` is called.
"""

import asyncio
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

from .driven_room import DrivenRoom

Key = TypeVar("Key", bound=Hashable)
Room = TypeVar("Room", bound=DrivenRoom)


class LiveRooms(Generic[Key, Room]):
    def __init__(self, over: Callable[[Room, Exception | None], None] | None = None) -> None:
        """over: called once a room has ended, with the error that broke it, if one did."""
        self._over = over
        self._rooms: dict[Key, Room] = {}
        self._emptied = asyncio.Event()

    def __len__(self) -> int:
        return len(self._rooms)

    def __iter__(self) -> Iterator[Room]:
        """Iterate over a snapshot: rooms may end meanwhile."""
        return iter(list(self._rooms.values()))

    def get(self, key: Key) -> Room | None:
        return self._rooms.get(key)

    def start(self, key: Key, room: Room) -> None:
        """Begin the room in the loop's next turn. REQUIRES: no other room of this key lives."""
        self._rooms[key] = room
        self._emptied.clear()
        room.start(lambda failure: self._end(key, room, failure))

    def _end(self, key: Key, room: Room, failure: Exception | None) -> None:
        del self._rooms[key]
        if not self._rooms:
            self._emptied.set()
        if self._over is not None:
            self._over(room, failure)

    async def end(self, patience: float) -> None:
        """Wait until all are over; drop those that are not after `patience` seconds."""
        if self._rooms:
            try:
                await asyncio.wait_for(self._emptied.wait(), patience)
            except TimeoutError:
                self.drop_all()

    def drop_all(self) -> None:
        """End every room where it is, as a node does that dies."""
        for room in self:
            room.end()
