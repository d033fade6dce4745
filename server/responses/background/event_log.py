"""The events of one response, kept for clients that come back for them.

Owns the events. One event loop's thread. Invariant: the event of number N is at place N.
"""

import asyncio

_ENTRY_BYTES = 64
"""Of an event's object and its place."""
_AT_ONCE = 64
_AT_ONCE_BYTES = 1 << 16
"""Events, and bytes of several, that are copied for one client."""


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

    def drop(self) -> None:
        """Forget the events. Who follows them is at their end."""
        self._events = []
        self.size = 0
        self.close()

    def since(self, place: int) -> tuple[bytes, int]:
        """Return events from that place on, and the place behind them. A long one comes alone, and
        uncopied: what waits for a client is counted here."""
        some: list[bytes] = []
        left = _AT_ONCE_BYTES
        for event in self._events[place : place + _AT_ONCE]:
            left -= len(event)
            if some and left < 0:
                break
            some.append(event)
        return (some[0] if len(some) == 1 else b"".join(some)), place + len(some)

    async def grown(self) -> None:
        """Return when an event comes, or the end."""
        if not self.closed:
            await self._more.wait()

    def _wake(self) -> None:
        self._more.set()
        self._more = asyncio.Event()
