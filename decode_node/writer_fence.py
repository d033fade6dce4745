"""A lost room's fence: ask the sender to drain, and wait until one of the three reasons holds.

Owns the evidence about one room's writer. Does not know the room's ids or its machine. Thread rule:
the event loop. Invariant: hold() returns only if the writer can write no more; without a reason it
never does.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable

from ..transfer.fence import DrainAcknowledged, Fence, FenceReason, LeaseExpired
from ..transfer.outgoing import Drain
from .handover_settings import HandoverSettings
from .prefill_link import PrefillConnection, PrefillLink

log = logging.getLogger(__name__)

_INTERVAL = 0.01


class WriterFence:
    def __init__(
        self,
        room: int,
        generation: int,
        link: PrefillLink,
        connection: PrefillConnection,
        retry_seconds: float,
        settings: HandoverSettings,
        sever: Callable[[FenceReason], Awaitable[None]],
    ) -> None:
        """retry_seconds: the transport's; a write may land that long after it was posted. sever:
        ends what was posted and has not arrived, where the reason leaves that open: TCP repeats it
        for minutes, and a dead process's kernel goes on sending."""
        self._room = room
        self._generation = generation
        self._link = link
        self._connection = connection
        self._retry_seconds = retry_seconds
        self._settings = settings
        self._sever = sever
        self._drained = DrainAcknowledged()
        self._stopped_at: float | None = None
        """When the sender said that it posts no more, though not that all has landed."""

    def acknowledge(self, drain: Drain) -> None:
        """The sender's word on what it posted."""
        if drain is Drain.DRAINED:
            self._drained.acknowledge()
        elif self._stopped_at is None:
            self._stopped_at = time.monotonic()

    @property
    def answered(self) -> bool:
        return self._drained.holds() or self._stopped_at is not None

    async def hold(self, ask_on_stream: Callable[[], Awaitable[None]]) -> FenceReason:
        """Until a reason holds. ask_on_stream: sends the abort and acknowledges what is
        answered."""
        stopped = LeaseExpired(lambda: self._stopped_at, self._retry_seconds)
        fence = Fence([self._drained, stopped, *self._connection.evidence()])
        asking = asyncio.create_task(self._ask(ask_on_stream))
        patience = time.monotonic() + self._settings.patience
        try:
            while (reason := fence.reason()) is None:
                await asyncio.sleep(_INTERVAL)
                if time.monotonic() > patience and self._connection.alive:
                    # Without our answers the sender's lease runs out, whatever ails it.
                    log.warning("room %d: no drain acknowledgement", self._room)
                    self._connection.lost.set()
        finally:
            asking.cancel()
        await self._sever(reason)
        log.info("room %d is fenced: %s", self._room, reason.value)
        return reason

    async def _ask(self, ask_on_stream: Callable[[], Awaitable[None]]) -> None:
        """Abort on the stream while it stands, by the unary call after that, until answered."""
        if not self.answered:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.acknowledge):
                    await ask_on_stream()
        while not self.answered:
            drain = await self._link.abort(
                self._connection, self._room, self._generation, self._settings.acknowledge
            )
            if drain is None:
                await asyncio.sleep(0.1)
            else:
                self.acknowledge(drain)
