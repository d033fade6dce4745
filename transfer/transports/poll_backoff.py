"""How long to wait until a transport is asked again, while something is awaited from it.

Some transports move bytes only inside such calls (base.py), and between two of them a socket fills
and the peer stands still. So after a call that moved some there is no wait; after one that did not
it begins short and doubles. What moved is known by the processor time that the thread spent: time
on the clock would count waits for a lock or a core too.
Owns the next wait. Knows no transport. Thread rule: one thread, the one that calls.
"""

import time
from collections.abc import Callable

_BUSY_SECONDS = 50e-6
"""Of processor time, more than a call takes that moves nothing; a core copies 200 KB in it."""
_FIRST_SECONDS = 50e-6


class PollBackoff:
    def __init__(self, processor_time: Callable[[], float] = time.thread_time) -> None:
        self._processor_time = processor_time
        self._wait = _FIRST_SECONDS
        self._began = processor_time()

    def begin(self) -> None:
        """The calls begin."""
        self._began = self._processor_time()

    def wait_seconds(self, most: float, calls: int = 1) -> float:
        """The `calls` since begin() have brought nothing: until they are worth repeating, at most
        `most`."""
        if self._processor_time() - self._began >= calls * _BUSY_SECONDS:
            self.reset()
            return 0.0
        wait, self._wait = self._wait, min(2 * self._wait, most)
        return min(wait, most)

    def reset(self) -> None:
        """Something came: more may follow soon."""
        self._wait = _FIRST_SECONDS
