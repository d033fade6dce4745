"""A lost room's fence: ask the writer to drain, and wait until one of the three reasons holds.

Owns the evidence about one room's writer. Does not know the room's ids or its machine, nor how the
writer is asked: its callers bring that. Either side of a hand-over may hold one. Thread rule: the
event loop. Invariant: hold() returns only if the writer can write no more; without a reason it
never does.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from tasuki.transfer.reports import Drain
from tasuki.utils.loops import GuardedTasks

from .evidence import DrainAcknowledged, Evidence, Fence, FenceReason, PostingStopped

log = logging.getLogger(__name__)

_INTERVAL = 0.01


@dataclass(frozen=True)
class Escalation:
    """When no drain is acknowledged within `patience` seconds, give_up() ends the connection:
    without our answers the writer's lease runs out, whatever ails it. sever() ends what was posted
    and has not arrived, where the reason leaves that open; see ConnectionBreaker."""

    patience: float
    give_up: Callable[[], None]
    sever: Callable[[FenceReason], Awaitable[None]]


class WriterFence:
    def __init__(
        self, room: int, evidence: Sequence[Evidence], retry_seconds: float, last: Escalation
    ) -> None:
        """evidence: of the writer's death and of its lease's end. retry_seconds: the transport's; a
        write may land that long after it was posted."""
        self._room = room
        self._last = last
        self._drained = DrainAcknowledged()
        self._stopped = PostingStopped(retry_seconds)
        self._fence = Fence([self._drained, self._stopped, *evidence])

    def acknowledge(self, drain: Drain) -> None:
        """The writer's word on what it posted."""
        if drain is Drain.DRAINED:
            self._drained.acknowledge()
        else:
            self._stopped.acknowledge()

    @property
    def answered(self) -> bool:
        return self._drained.holds() or self._stopped.acknowledged

    def _not_asked(self, error: Exception) -> None:
        """Then the writer's death or its lease's end is the reason."""
        log.warning("room %d: the drain could not be asked for: %r", self._room, error)

    async def hold(self, ask: Callable[[], Coroutine[Any, Any, None]]) -> FenceReason:
        """Until a reason holds. ask: asks for the drain until it is answered; cancelled after
        that. Waits on nobody: patience, the lease, retry_seconds and settling bound it."""
        asking = GuardedTasks(f"fence-{self._room}", self._not_asked)
        asking.start(ask)
        patience = time.monotonic() + self._last.patience
        try:
            while (reason := self._fence.reason()) is None:
                await asyncio.sleep(_INTERVAL)
                if time.monotonic() > patience:
                    log.warning("room %d: no drain acknowledgement", self._room)
                    patience = float("inf")
                    self._last.give_up()
        finally:
            await asking.end()
        await self._last.sever(reason)
        log.info("room %d is fenced: %s", self._room, reason.value)
        return reason
