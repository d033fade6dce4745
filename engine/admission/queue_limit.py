"""How long a request may wait in the engine's queue before its prompt is begun, and when its first
token is due.

Owns no queue: its owner reports who enters one. Thread rule: the engine's thread.
Invariant: looking costs nothing while nobody can be due, and else what those cost who are, however
many wait and however many different times they name.
"""

import math
import time
from collections.abc import Callable, Container
from heapq import heappop, heappush
from itertools import count
from weakref import ReferenceType, ref

from tasuki.engine.request import Request


class QueueLimit:
    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self._clock = clock
        self._times: list[tuple[float, int, ReferenceType[Request]]] = []
        """A heap; also of those who wait no longer, whose prompts it does not keep."""
        self._numbers = count()

    def entered(self, request: Request) -> None:
        """Its time begins: whoever comes back from another node's queue waits anew in this one, but
        never longer than its client does."""
        now, targets = self._clock(), request.targets
        if request.deadline is None:
            patience = request.patience if targets.answer is None else targets.answer
            request.deadline = now + min(request.patience, patience)
            if targets.first_token is not None:
                request.first_due = now + targets.first_token
        request.queued_at = now
        request.due = min(now + self.seconds, request.deadline)
        # A first token that is due later is of no consequence: the wait is over before. So nothing
        # is kept for longer than somebody may wait here, whatever a client names.
        for at in {request.due, request.first_due}:
            if at < math.inf and at <= request.due:
                heappush(self._times, (at, next(self._numbers), ref(request)))

    def seconds_left(self, request: Request) -> float:
        """Until its first token is due; infinite where nobody said when, or nobody waits for it."""
        return math.inf if request.output else request.first_due - self._clock()

    @property
    def idle_seconds(self) -> float | None:
        """How long nobody needs to look; None: until somebody enters."""
        return max(0.0, self._times[0][0] - self._clock()) if self._times else None

    def passed(self, waiting: Container[Request]) -> list[Request]:
        """Those of the queue for whom something has become due: they have waited too long, or past
        the time of their first token. Whoever was begun once, and gave way since, is never among
        them."""
        now = self._clock()
        passed: dict[Request, None] = {}
        while self._times and self._times[0][0] <= now:
            request = heappop(self._times)[-1]()
            if request is None or request.begun or request not in waiting:
                continue
            # Its time may have begun anew since.
            if request.ordered_by <= now:
                passed[request] = None
        return [*passed]

    def is_over(self, request: Request) -> bool:
        """Whether it has waited too long."""
        return request.due <= self._clock()
