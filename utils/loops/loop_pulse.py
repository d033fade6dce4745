"""How long an event loop is behind, measured from another thread.

Owns one probe at a time. Thread rule: behind() belongs to one thread; the probe's answer may
come on any.
"""

import time
from collections.abc import Callable


class LoopPulse:
    def __init__(
        self,
        probe: Callable[[Callable[[], None]], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """probe: has the loop call what it is given, and returns at once."""
        self._probe = probe
        self._clock = clock
        self._asked: float | None = None
        """When the probe was posted that the loop has not run yet."""

    def behind(self) -> float:
        """For how many seconds the last probe has waited; 0.0 where it has run, and then the next
        probe is posted."""
        asked = self._asked
        if asked is not None:
            return self._clock() - asked
        self._asked = self._clock()
        self._probe(self._answer)
        return 0.0

    def _answer(self) -> None:
        self._asked = None
