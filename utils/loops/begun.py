"""Coroutines that begin at once, without a task of their own.

A task's first turn and its wake-up cost more than a short coroutine does; most of them have ended
by the time that anybody asks. Thread rule: the event loop's.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any


class Begun:
    """A coroutine that has run until it waits. It goes on where somebody asks whether it has ended,
    no earlier. REQUIRES: it waits for futures of this loop alone, and what it does behind the last
    of them can wait."""

    def __init__(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Raises what the coroutine does before it waits."""
        self._coroutine = coroutine
        self._waits_for: asyncio.Future[Any] | None = None
        self._go_on()

    def _go_on(self) -> None:
        try:
            self._waits_for = self._coroutine.send(None)
        except StopIteration:
            self._waits_for = None

    @property
    def ended(self) -> bool:
        """Raises what the coroutine does, once."""
        while self._waits_for is not None and self._waits_for.done():
            self._waits_for = None
            self._go_on()
        return self._waits_for is None

    async def end(self) -> None:
        """Wait for it. Cancelling who waits leaves it as it is. Raises what the coroutine does."""
        while not self.ended:
            assert self._waits_for is not None
            await asyncio.wait((self._waits_for,))

    def close(self) -> None:
        """Let it go no further. Idempotent."""
        self._waits_for = None
        self._coroutine.close()
