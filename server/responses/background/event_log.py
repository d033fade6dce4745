"""The events of one response, kept for clients that come back for them.

Owns the events. One event loop's thread. Invariant: the event of number N is at place N.
"""

import asyncio

_ENTRY_BYTES = 64
"""Of an event's object and its place."""


class EventLog:
    def __init__(self) -> None:
        self._events: list[bytes] = []
        self._more = asyncio.Event()
        self.size = 0
        """Bytes of memory."""
        self.closed = False
        """Nothing comes any more."""

    def __len__(self) -> int:
        return len(self._events)

    def add(self, events: bytes) -> int:
        """Put whole server-sent events behind the others, and return how much memory they take."""
        added = [event + b"\n\n" for event in events.split(b"\n\n")[:-1]]
        self._events += added
        grown = len(events) + _ENTRY_BYTES * len(added)
        self.size += grown
        self._wake()
        return grown

    def close(self) -> None:
        self.closed = True
        self._wake()

    def since(self, place: int, most: int) -> bytes:
        """Return the events from that place on, `most` of them at most."""
        return b"".join(self._events[place : place + most])

    async def grown(self) -> None:
        """Return when an event comes, or the end."""
        if not self.closed:
            await self._more.wait()

    def _wake(self) -> None:
        self._more.set()
        self._more = asyncio.Event()
