"""Keeps a node's history: what its engine and its world say, and a sample of its counters a second.

Owns the history. Thread rule: the event loop's. `observe` never waits for anybody.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from ..dashboard.events import Event, event_of, pools_event
from ..dashboard.history import NodeHistory
from ..dashboard.node_report import NodeReport
from ..dashboard.prompt_blocks import PromptBlocks
from ..dashboard.told import Told
from ..engine.messages import Submit
from .errors import FrontError

_SAMPLE_SECONDS = 1.0


class NodeRecorder:
    def __init__(self, clock: Callable[[], float]) -> None:
        """clock: seconds since 1970."""
        self.history = NodeHistory()
        self._clock = clock
        self._last = 0.0
        self._blocks = PromptBlocks()
        self._recordings = 0

    def now(self) -> float:
        """A clock that is set back must not turn the history around."""
        self._last = max(self._last, self._clock())
        return self._last

    def observe(self, message: Told) -> None:
        event = event_of(message)
        if event is None:
            return
        if self._recordings and isinstance(message, Submit):
            event["blocks"] = self._blocks.names(message)
        self._keep(event)

    @contextmanager
    def telling_blocks(self) -> Iterator[None]:
        """Inside it prompts' blocks are told too: they are many, so only while somebody records."""
        self._recordings += 1
        try:
            yield
        finally:
            self._recordings -= 1

    async def sample(self, ask: Callable[[], Awaitable[NodeReport]]) -> None:
        """Keep a sample a second until cancelled, or until the engine has died."""
        while True:
            try:
                self._keep(pools_event(await ask()))
            except FrontError:
                return
            await asyncio.sleep(_SAMPLE_SECONDS)

    def _keep(self, event: Event) -> None:
        self.history.apply({**event, "at": self.now()})
