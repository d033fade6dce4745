"""The calls that answer requests, until their clients were sent the end. One event loop's
thread."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class CallsInProgress:
    def __init__(self) -> None:
        self._count = 0
        self._none = asyncio.Event()
        self._none.set()

    @contextmanager
    def one(self) -> Iterator[None]:
        """Around all that a call does."""
        self._count += 1
        self._none.clear()
        try:
            yield
        finally:
            self._count -= 1
            if self._count == 0:
                self._none.set()

    async def over(self) -> None:
        """Returns when none is in progress."""
        await self._none.wait()
