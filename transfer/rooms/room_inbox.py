"""The events of one room, taken in order by the one task that moves it.

Owns the queue. Knows no machine. Thread rule: the event loop. Invariant: between two events the
room is looked at once in `look` seconds, so that one on which nothing moves is noticed.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Generic, TypeVar

Event = TypeVar("Event")


class RoomInbox(Generic[Event]):
    def __init__(self, look: float) -> None:
        self._look = look
        self._events: asyncio.Queue[Event] = asyncio.Queue()

    def put(self, event: Event) -> None:
        self._events.put_nowait(event)

    async def get(self) -> Event:
        return await self._events.get()

    async def next(self, overdue: Callable[[], Event | None]) -> Event:
        """The next event. overdue: asked at each look; what it returns comes before the queue."""
        while True:
            if (late := overdue()) is not None:
                return late
            with contextlib.suppress(TimeoutError):
                return await asyncio.wait_for(self._events.get(), self._look)

    def unread(self) -> list[Event]:
        """Take out what nobody has taken."""
        return [self._events.get_nowait() for _ in range(self._events.qsize())]
