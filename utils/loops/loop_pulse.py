"""Whether an event loop comes round, asked from another thread.

Owns one question at a time. Thread rule: one thread asks; the loop answers.
"""

import asyncio
import time
from collections.abc import Callable


class LoopPulse:
    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._asked: float | None = None
        """When the question was put that is not answered yet."""

    def behind(self) -> float:
        """For how many seconds the loop has owed an answer, 0.0 where it owes none; it is asked
        anew then, so that the next call can tell."""
        asked = self._asked
        if asked is not None:
            return self._clock() - asked
        self._asked = self._clock()
        self._loop.call_soon_threadsafe(self._answer)
        return 0.0

    def _answer(self) -> None:
        self._asked = None
