"""The rooms of one kind that are not over, each with the task that runs it.

Owns rooms and tasks. Knows nothing of either. Thread rule: the event loop. Invariant: a room is
here from start() until its task has ended, and is gone before `over` is called.
"""

import asyncio
import logging
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, Protocol, TypeVar

log = logging.getLogger(__name__)


class Runs(Protocol):
    async def run(self) -> None: ...


Key = TypeVar("Key", bound=Hashable)
Room = TypeVar("Room", bound=Runs)


class LiveRooms(Generic[Key, Room]):
    def __init__(
        self, kind: str, over: Callable[[Room, Exception | None], None] | None = None
    ) -> None:
        """kind: names the tasks and the log lines of rooms that break. over: called once when a
        room has ended, with what it raised."""
        self._kind = kind
        self._over = over
        self._rooms: dict[Key, Room] = {}
        self.tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._rooms)

    def __iter__(self) -> Iterator[Room]:
        """A snapshot: rooms may end meanwhile."""
        return iter(list(self._rooms.values()))

    def get(self, key: Key) -> Room | None:
        return self._rooms.get(key)

    def start(self, key: Key, room: Room) -> None:
        """Run the room. REQUIRES: no other room of this key lives."""
        self._rooms[key] = room
        work = self._run(key, room)
        task = asyncio.get_running_loop().create_task(work, name=f"{self._kind}-{key}")
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _run(self, key: Key, room: Room) -> None:
        failure: Exception | None = None
        try:
            await room.run()
        except Exception as error:
            log.exception("%s %s broke", self._kind, key)
            failure = error
        finally:
            del self._rooms[key]
            if self._over is not None:
                self._over(room, failure)

    async def end(self, patience: float) -> None:
        """Wait until all are over; cancel what is not after `patience` seconds."""
        if self.tasks:
            _, late = await asyncio.wait(self.tasks, timeout=patience)
            for task in late:
                task.cancel()
