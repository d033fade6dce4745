"""The calls that answer requests, until their clients were sent the end, and those that failed.
One event loop's thread."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from .errors import error_kinds


class CallsInProgress:
    """failures: calls that an error ended or refused, by the error's kind; kinds of which there was
    none yet are 0, so that a rate shows the first."""

    def __init__(self) -> None:
        self.failures: Counter[str] = Counter(dict.fromkeys(error_kinds(), 0))
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

    def failed(self, kind: str) -> None:
        """Count a call. kind: one of docs/errors.md."""
        self.failures[kind] += 1

    async def over(self) -> None:
        """Returns when none is in progress."""
        await self._none.wait()
