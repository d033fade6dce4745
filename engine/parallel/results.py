"""What a follower's forwards drew, said to its leader as each ends, while the next is launched.

Owns one thread, which waits for forwards in their order; the follower's own launches them. close()
is that one's. Invariant: the first error ends the waiting for plans, and is raised by close().
"""

import threading
from collections.abc import Callable
from queue import SimpleQueue

from tasuki.engine.runner.base import InFlightForward
from tasuki.utils.os_threads import name_this_thread

from .checksum import checksum


class ReportedResults:
    """report: called with a plan's number and the checksum of what it drew, if it drew anything, on
    the thread. check: called before; raises where what was drawn is worthless. on_error: called
    once, on the thread, where any of them has raised."""

    def __init__(
        self,
        report: Callable[[int, int | None], None],
        check: Callable[[], None],
        on_error: Callable[[], None],
    ) -> None:
        self._report = report
        self._check = check
        self._on_error = on_error
        self._flying: SimpleQueue[tuple[int, InFlightForward] | None] = SimpleQueue()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="tasuki-results", daemon=True)
        self._thread.start()

    def follow(self, number: int, forward: InFlightForward) -> None:
        """The plan is launched, whether it has rows or only copies."""
        self._flying.put((number, forward))

    def close(self) -> None:
        """Once all that was launched has ended. Raises what the thread ran into."""
        self._flying.put(None)
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        name_this_thread()
        try:
            while (item := self._flying.get()) is not None:
                number, forward = item
                drawn = forward.result()
                self._check()
                self._report(number, checksum(drawn) if len(drawn) else None)
        except Exception as error:
            self._error = error
            self._on_error()
