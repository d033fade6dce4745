"""Turns of the readers of large bodies: a round of the event loop reads one piece.

Owns the readers in line. One event loop's thread.
Invariants: one round of the loop begins one turn at most; turns begin in the order of asking; a
reader that left takes no turn; nothing runs without readers in line.
"""

import asyncio
from collections import deque


class BodyTurns:
    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._scheduled = False

    async def turn(self) -> None:
        """Return when it is this caller's turn."""
        loop = asyncio.get_running_loop()
        mine = loop.create_future()
        self._waiting.append(mine)
        if not self._scheduled:
            self._scheduled = True
            loop.call_soon(self._next)
        await mine

    def _next(self) -> None:
        while self._waiting:
            first = self._waiting.popleft()
            if not first.done():
                first.set_result(None)
                break
        self._scheduled = bool(self._waiting)
        if self._scheduled:
            asyncio.get_running_loop().call_soon(self._next)
