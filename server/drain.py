"""State of a node's drain: its place in load balancers' rotation, and calls in progress.

Rotation: the node's place in the load balancers' rotation, and the grace (seconds from leaving to
the first refusal). A node out of rotation is not ready but still takes requests. After the grace it
may reject them. One event loop's thread; any thread may read `left`. Invariant: a node that returns
gets a whole grace again.

CallsInProgress: counts of the calls in progress and of the failed calls. A call is in progress
until the end of its answer was sent to the client. One event loop's thread.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from tasuki.utils.signatures import Notice

from .errors import error_kinds


class Rotation:
    def __init__(self, grace_seconds: float = 0.0) -> None:
        """Set up the rotation. grace_seconds: seconds from leave() until requests may be
        refused."""
        self._grace_seconds = grace_seconds
        self._left_at: float | None = None
        self._hurried = False
        self._changed = asyncio.Event()
        self._watchers: list[Notice] = []

    @property
    def left(self) -> bool:
        return self._left_at is not None

    def watch(self, call: Notice) -> None:
        """Call `call`, without arguments, whenever the node has left the load balancers' rotation
        or come back."""
        self._watchers.append(call)

    def leave(self) -> None:
        """Leave the load balancers' rotation. Does nothing if the node has left already."""
        if self._left_at is None:
            self._left_at = asyncio.get_running_loop().time()
            self._show()

    def come_back(self) -> None:
        """Return to the load balancers' rotation, if out of it, and wake the waits for the
        grace."""
        if self._left_at is not None:
            self._left_at = None
            self._show()

    def hurry(self) -> bool:
        """End the grace now, even before it begins, and skip later ones. Return True if any grace
        was skipped."""
        if self._hurried or self._owed() <= 0:
            return False
        self._hurried = True
        self._wake()
        return True

    async def grace(self) -> None:
        """Wait for the end of the grace: requests may then be refused. Return early if the node has
        come back, or on hurry()."""
        while self.left and not self._hurried and (owed := self._owed()) > 0:
            changed = self._changed
            try:
                await asyncio.wait_for(changed.wait(), owed)
            except TimeoutError:
                return

    def _owed(self) -> float:
        """Return the remaining seconds of the grace."""
        if self._left_at is None:
            return self._grace_seconds
        return self._left_at + self._grace_seconds - asyncio.get_running_loop().time()

    def _show(self) -> None:
        self._wake()
        for call in self._watchers:
            call()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class CallsInProgress:
    """The counts of calls in progress and of failed calls. failures: number of calls ended or
    rejected by an error, by the error's kind. Every kind starts at 0, so a rate shows its first
    error."""

    def __init__(self) -> None:
        self.failures: Counter[str] = Counter(dict.fromkeys(error_kinds(), 0))
        self._count = 0
        self._none = asyncio.Event()
        self._none.set()

    @contextmanager
    def one(self) -> Iterator[None]:
        """Count a call in progress inside `with`."""
        self._count += 1
        self._none.clear()
        try:
            yield
        finally:
            self._count -= 1
            if self._count == 0:
                self._none.set()

    def failed(self, kind: str) -> None:
        """Count a failed call. kind: error kind, one of docs/errors.md."""
        self.failures[kind] += 1

    async def over(self) -> None:
        """Wait until no call is in progress."""
        await self._none.wait()
