"""How long a node that drains leaves states to prefill nodes, its heirs.

One event loop's thread. Invariants: it begins with the drain, beside the requests in flight; it
ends within the drain's timeout, and at most alone_seconds() after the last of them.
"""

import asyncio
import logging

from tasuki.engine import messages as m
from tasuki.server.engine_client import EngineClient
from tasuki.server.errors import RequestAborted, RequestRejected

log = logging.getLogger(__name__)

MOST_SECONDS = 10.0
_PART_OF_DRAIN = 3
_REPORT_SECONDS = 1.0
"""For an engine that is told that the time is over to say what became of it."""


def alone_seconds(drain_timeout: float) -> float:
    """For heirs alone, once no request is in flight."""
    return min(MOST_SECONDS, drain_timeout / _PART_OF_DRAIN)


class TimeForHeirs:
    """Begins when it is made, on the event loop; end() ends it."""

    def __init__(self, engine: EngineClient, drain_timeout: float) -> None:
        """drain_timeout: from now on, in seconds."""
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._until = self._loop.time() + drain_timeout
        self._alone = alone_seconds(drain_timeout)
        self._left = self._loop.create_task(engine.leave_to_heirs(), name="heirs")

    async def end(self) -> None:
        """Requests in flight have ended, or were cut: wait for what is left of the time."""
        began = self._loop.time()
        await self._wait(min(self._alone, self._until - began))
        if not self._left.done():
            self._engine.end_leaving()
            await self._wait(_REPORT_SECONDS)
        if not self._left.done():
            self._left.cancel()
            log.warning("the engine does not say what it left to prefill nodes")
            return
        try:
            _log(self._left.result(), self._loop.time() - began)
        except (RequestRejected, RequestAborted) as error:
            log.warning("nothing more is left to prefill nodes: %s", error)

    async def _wait(self, seconds: float) -> None:
        await asyncio.wait([self._left], timeout=max(0.0, seconds))


def _log(left: m.LeftToHeirs, seconds: float) -> None:
    if not (left.states or left.untried):
        return
    outcomes = {outcome.value: count for outcome, count in left.states.items()}
    fields = {
        **outcomes,
        "tokens": left.tokens,
        "bytes": left.bytes,
        "untried": left.untried,
        "alone_seconds": round(seconds, 3),
    }
    taken = left.states.get(m.HeirOutcome.TAKEN, 0)
    log.info("prefill nodes took %d states of %d tokens", taken, left.tokens, extra=fields)
