"""Calls side by side: a few threads, so that a store has several reads or writes at a time.

Thread rule of run(): any, several at a time.
Invariant: what run() was given has ended when it returns, whoever else runs calls meanwhile. A call
that hangs, hangs it: who waits for it has a bound (CopyThread).
"""

import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue

from tasuki.utils.os_threads import name_this_thread

Call = Callable[[], None]
Ends = SimpleQueue[BaseException | None]
"""How each call of one run() ended."""


class IoThreads:
    """Daemons, from the first run() with several calls on: what hangs in one holds up no exit."""

    def __init__(self, name: str, count: int) -> None:
        self._name = name
        self._count = count
        self._starting = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._asked: SimpleQueue[tuple[Call, Ends] | None] = SimpleQueue()

    def run(self, calls: Sequence[Call]) -> None:
        """Raises what one of them raised, once all have ended."""
        if len(calls) == 1:
            calls[0]()
            return
        self._start()
        ends: Ends = SimpleQueue()
        for call in calls:
            self._asked.put((call, ends))
        errors = [ends.get() for _ in calls]
        for error in errors:
            if error is not None:
                raise error

    def close(self) -> None:
        """Idempotent. REQUIRES: nothing runs, or it hangs for good."""
        for _ in self._threads:
            self._asked.put(None)
        self._threads.clear()

    def _start(self) -> None:
        with self._starting:
            while len(self._threads) < self._count:
                name = f"{self._name}-{len(self._threads)}"
                thread = threading.Thread(target=self._work, name=name, daemon=True)
                thread.start()
                self._threads.append(thread)

    def _work(self) -> None:
        name_this_thread()
        while (asked := self._asked.get()) is not None:
            call, ends = asked
            try:
                call()
            except BaseException as error:
                ends.put(error)
            else:
                ends.put(None)
