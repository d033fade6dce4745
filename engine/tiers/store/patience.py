"""How often a store may fail in a row before nobody asks it any more."""

import threading
import time
from collections.abc import Callable

MOST_FAILURES = 3


class Patience:
    """Thread rule: any."""

    def __init__(
        self, seconds: float = float("inf"), clock: Callable[[], float] = time.monotonic
    ) -> None:
        """seconds: after which it is tried again."""
        self._seconds = seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._failures = 0
        self._since = 0.0

    @property
    def is_over(self) -> bool:
        with self._lock:
            if self._failures < MOST_FAILURES:
                return False
            return self._clock() < self._since + self._seconds

    def failed(self) -> bool:
        """Whether it is over by this one."""
        with self._lock:
            self._failures += 1
            self._since = self._clock()
            return self._failures == MOST_FAILURES

    def worked(self) -> None:
        with self._lock:
            self._failures = 0
