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
        """Its time begins: whoever comes back from another node's queue waits anew in this one, but
        never longer than its client does."""
        now = self._clock()
        if request.deadline is None:
            request.deadline = now + request.patience
        request.queued_at = now
        request.due = min(now + self.seconds, request.deadline)
        if self._next is None or request.due < self._next:
            self._next = request.due

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
        self._next = min((request.due for request in bounded if request.due > now), default=None)
        return [request for request in bounded if request.due <= now]
