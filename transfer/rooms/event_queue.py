"""What happens to a room, in order, for the one task that takes it; and a look at the room where
nothing happens.

Owns the queue and one timer. Knows no events. Thread rule: the event loop; one task takes at a
time. Invariant: next() returns within `look` seconds of its call. Costs no task and, as long as
events come, one timer for each `look`: a room's events are few, but nodes have hundreds of rooms.
"""

import asyncio
from collections import deque
from typing import Generic, TypeVar

Event = TypeVar("Event")


class EventQueue(Generic[Event]):
    def __init__(self, look: float) -> None:
        """look: seconds."""
        self._look = look
        self._events: deque[Event] = deque()
        self._taker: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def put(self, event: Event) -> None:
        self._events.append(event)
        self._wake()

    async def next(self) -> Event | None:
        """The oldest event; None where it is time to look at the room before one has come."""
        if not self._events:
            # One that runs since an earlier wait ends early for this one, and never late.
            if self._timer is None:
                loop = asyncio.get_running_loop()
                self._timer = loop.call_later(self._look, self._time_to_look)
            await self._wait()
        return self._events.popleft() if self._events else None

    async def get(self) -> Event:
        """The oldest event, however long it takes to come."""
        while not self._events:
            await self._wait()
        return self._events.popleft()

    def take_all(self) -> list[Event]:
        """What is there, the oldest first."""
        events = list(self._events)
        self._events.clear()
        return events

    def close(self) -> None:
        """No more is taken: the timer ends. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _wait(self) -> None:
        """Until an event comes, or a timer ends."""
        self._taker = asyncio.get_running_loop().create_future()
        try:
            await self._taker
        finally:
            self._taker = None

    def _time_to_look(self) -> None:
        self._timer = None
        self._wake()

    def _wake(self) -> None:
        if self._taker is not None and not self._taker.done():
            self._taker.set_result(None)
