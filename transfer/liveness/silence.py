"""When a peer that says nothing is lost: after its silence, and not after this node's own.

Owns the count of one peer's silence. Knows neither peers nor what they say. Thread rule: one event
loop; Silence itself reads no clock.
Invariants: silence counts only between two ticks that this loop made in time, since what a peer
said in a gap of ours may wait where nobody has read it yet; but gaps postpone nothing for ever: the
LATE_TICKS-th since the peer's last message is the last.
"""

import asyncio
import time
from collections.abc import Awaitable
from typing import TypeVar

from tasuki.transfer.errors import PeerSilent

LATE_TICKS = 10
_TICKS_A_LIMIT = 10

Result = TypeVar("Result")


class Silence:
    def __init__(
        self, limit: float, now: float, period: float | None = None, *, grace: float = 0.0
    ) -> None:
        """limit: seconds of silence that lose a peer. period: how often tick() is to be called; a
        tick that comes after two of them is late. grace: seconds more before the first message.
        Times are this node's monotonic seconds."""
        self.limit = limit
        self.period = limit / _TICKS_A_LIMIT if period is None else period
        self.received(now)
        self._silent = -grace

    def received(self, now: float) -> None:
        """The peer said something."""
        self._ticked = now
        self._silent = 0.0
        self._late = 0

    def tick(self, now: float) -> bool:
        """Whether the peer is lost."""
        gap, self._ticked = now - self._ticked, now
        if gap > 2 * self.period:
            self._late += 1
        else:
            self._silent += gap
        return self._silent >= self.limit or self._late >= LATE_TICKS


async def unless_silent(awaited: Awaitable[Result], silence: Silence) -> Result:
    """What is awaited of the peer, cancelled where the peer is lost first. Raises PeerSilent, and
    what the awaited raises."""
    waiting = asyncio.ensure_future(awaited)
    try:
        while not waiting.done():
            await asyncio.wait({waiting}, timeout=silence.period)
            if not waiting.done() and silence.tick(time.monotonic()):
                raise PeerSilent(f"the peer said nothing for {silence.limit} s")
        return waiting.result()
    finally:
        waiting.cancel()
