"""The engine's counters for a scrape, which must not wait for a step that takes long.

Owns the question that is under way. One event loop's thread. Invariants: one question at a time,
however many ask; nobody waits longer than they say; an engine that has died is asked nothing more.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

from tasuki.dashboard.metrics.node_report import NodeReport
from tasuki.server.errors import ServerError


class LatestCounters:
    def __init__(
        self,
        ask: Callable[[], Awaitable[NodeReport]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """ask: the engine, now; raises ServerError where it has died."""
        self._ask = ask
        self._clock = clock
        self._asking: asyncio.Task[None] | None = None
        self._last: NodeReport | None = None
        self._asked_at = clock()

    async def within(self, seconds: float) -> NodeReport | None:
        """What the engine answers within so long, or answered last; None where it has answered
        nothing yet, or has died."""
        if self._asking is None:
            self._asked_at = self._clock()
            self._asking = asyncio.get_running_loop().create_task(self._answer())
        await asyncio.wait([self._asking], timeout=seconds)
        return self._last

    @property
    def silent_seconds(self) -> float:
        """For how long it has owed an answer; 0 where it owes none, so that what within() gave is
        from now."""
        return 0.0 if self._asking is None else self._clock() - self._asked_at

    async def _answer(self) -> None:
        try:
            self._last = await self._ask()
        except ServerError:
            self._last = None
        finally:
            self._asking = None

    def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
