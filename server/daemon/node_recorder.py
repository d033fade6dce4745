"""Keeps a node's history: the messages of its engine and its hand-overs, and its counters once a
second.

Owns the history. Thread rule: the event loop's. `observe` never waits.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from tasuki.dashboard.history.events import Event, event_of, pools_event
from tasuki.dashboard.history.node_history import NodeHistory
from tasuki.dashboard.history.prompt_blocks import PromptBlocks
from tasuki.dashboard.metrics.node_report import NodeReport
from tasuki.dashboard.observed import ObservedMessage
from tasuki.engine.messages import Finished, Rejected, Submit
from tasuki.server.errors import ServerError

log = logging.getLogger(__name__)


def log_ended(message: ObservedMessage) -> None:
    match message:
        case Finished(request_id=request_id, reason=reason, usage=usage):
            cached = 0 if usage.hit is None else usage.hit.usable_tokens
            fields = {
                "request_id": request_id,
                "prompt_tokens": usage.prompt_tokens,
                "cached_tokens": cached,
                "completion_tokens": usage.completion_tokens,
                "prefilled_on": usage.prefilled_on,
                "first_token_seconds": round(usage.time_to_first_token, 6),
                "seconds": round(usage.seconds, 6),
            }
            log.info("request ended: %s", reason.value, extra=fields)
        case Rejected(request_id=request_id, error=error):
            log.warning("request refused: %s", error.message, extra={"request_id": request_id})


_SAMPLE_SECONDS = 1.0


class NodeRecorder:
    def __init__(self, clock: Callable[[], float]) -> None:
        """clock: seconds since 1970."""
        self.history = NodeHistory()
        self._clock = clock
        self._last = 0.0
        self._blocks = PromptBlocks()
        self._recordings = 0
        self._generated = 0

    def now(self) -> float:
        """Seconds since 1970; never less than before, also where the clock is set back."""
        self._last = max(self._last, self._clock())
        return self._last

    def observe(self, message: ObservedMessage) -> None:
        event = event_of(message)
        if self._recordings and isinstance(message, Submit):
            event["blocks"] = self._blocks.names(message)
        self._keep(event)

    def count_tokens(self, count: int) -> None:
        """Of answers."""
        self._generated += count

    @contextmanager
    def recording_blocks(self) -> Iterator[None]:
        """Inside `with`, a submit event names the prompt's blocks. They are many, so they are named
        only while a recording runs."""
        self._recordings += 1
        try:
            yield
        finally:
            self._recordings -= 1

    async def sample(self, ask: Callable[[], Awaitable[NodeReport]]) -> None:
        """Keep a sample a second until cancelled, or until the engine has died. ask: the node's
        counters now."""
        while True:
            try:
                self.keep_sample(await ask())
            except ServerError:
                return
            await asyncio.sleep(_SAMPLE_SECONDS)

    def keep_sample(self, report: NodeReport) -> None:
        self._keep(pools_event(report, self._generated))

    def _keep(self, event: Event) -> None:
        self.history.apply({**event, "at": self.now()})
