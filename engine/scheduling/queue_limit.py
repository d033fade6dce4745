"""How long a request may wait in the engine's queue before its prompt is begun.

Owns no queue: its owner reports who enters one. Thread rule: the engine's thread.
Invariant: looking costs nothing while nobody can be due.
"""

import time
from collections.abc import Callable, Iterable

from tasuki.engine.request import Request


class QueueLimit:
    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self._clock = clock
        self._next: float | None = None
        """Nobody is due before; None: nobody waits."""

    def entered(self, request: Request) -> None:
        """Its time begins: whoever comes back from another node's queue waits anew in this one."""
        request.queued_at = self._clock()
        if self._next is None:
            self._next = request.queued_at + self.seconds

    @property
    def idle_seconds(self) -> float | None:
        """How long nobody needs to look; None: until somebody enters."""
        return None if self._next is None else max(0.0, self._next - self._clock())

    def overdue(self, waiting: Iterable[Request]) -> list[Request]:
        """Those of the queue that have waited too long. Whoever was begun once, and gave way since,
        is never among them."""
        now = self._clock()
        if self._next is None or now < self._next:
            return []
        bounded = [request for request in waiting if not request.begun]
        due = [request for request in bounded if now - request.queued_at >= self.seconds]
        left = [request.queued_at for request in bounded if now - request.queued_at < self.seconds]
        self._next = min(left) + self.seconds if left else None
        return due
