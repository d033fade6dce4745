"""One peer as a writer into this node's arena, over one connection.

Shows the evidence for the end of the peer's writes, and performs the steps before its granted ids
are used again. Owns the pidfd of the writer's process and the time of this node's last lease
answer. Owns also the order of breaking connections and waiting for their bytes. Knows no transfers
and no messages; `lifecycle/fence.py` judges the evidence. Invariant: after lose() no answer counts,
so the writer's lease runs out.
"""

import asyncio
import os
import select
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Self, TypeVar

from tasuki.transfer.errors import PeerTimedOut
from tasuki.transfer.lifecycle.fence import FenceReason, FenceTerms, WriterFacts
from tasuki.transfer.lifecycle.heartbeats import HeartbeatTimeout
from tasuki.transfer.node_identity import ProcessIdentity, _shares_network, _start_ticks
from tasuki.transfer.receiving.receiver import Receiver
from tasuki.transfer.transports.base import Transport

Result = TypeVar("Result")


async def unless_timed_out(
    awaited: Awaitable[Result], heartbeat_timeout: HeartbeatTimeout
) -> Result:
    """Return the result of `awaited`; cancel the wait if the peer times out first. Raises
    PeerTimedOut, and the errors of `awaited`."""
    waiting = asyncio.ensure_future(awaited)
    try:
        while not waiting.done():
            await asyncio.wait({waiting}, timeout=heartbeat_timeout.period)
            if not waiting.done() and heartbeat_timeout.tick(time.monotonic()):
                raise PeerTimedOut(f"the peer said nothing for {heartbeat_timeout.limit} s")
        return waiting.result()
    finally:
        waiting.cancel()


class WatchedProcess:
    """Watched process of a writer: a pidfd opened while the process lived."""

    def __init__(self, pidfd: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._poller = select.poll()
        self._poller.register(pidfd, select.POLLIN)
        self._pidfd: int | None = pidfd
        self._clock = clock
        self._died: float | None = None

    @classmethod
    def watch(
        cls, writer: ProcessIdentity, clock: Callable[[], float] = time.monotonic
    ) -> Self | None:
        """Watch the writer's process. Return None if it is on another host, dead, or cannot be
        watched: its death is then no evidence. Return None also for another network namespace:
        after a death in it, bytes may be in connections invisible from here."""
        if not writer.here() or not _shares_network(writer.pid):
            return None
        try:
            pidfd = os.pidfd_open(writer.pid)
        except OSError:
            return None
        try:
            # Read after the open: from now on the pidfd names exactly this process.
            same = _start_ticks(writer.pid) == writer.start_ticks
        except (OSError, ValueError, IndexError):
            same = False
        if not same:
            os.close(pidfd)
            return None
        return cls(pidfd, clock)

    def died(self) -> float | None:
        """Return the time when the process was first seen dead; None while it lives."""
        if self._died is None and self._pidfd is not None and self._poller.poll(0):
            self._died = self._clock()
        return self._died

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Close the pidfd. Idempotent; died() keeps a death seen before."""
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None


class WriterLife:
    """Life of one writer: its lease and its process. Thread rule: one thread changes, any reads."""

    def __init__(
        self,
        process: ProcessIdentity,
        lease_seconds: float,
        retry_seconds: float,
        settle_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """lease_seconds: time from this node's last answer during which the writer may post, as the
        writer states it. retry_seconds, settle_seconds: the transport's values of these names."""
        self.severed = False
        """True if the transport broke all of this writer's endpoints to this node after the writer
        was lost. Endpoints do not come back by themselves, so none is left."""
        self._lease = lease_seconds
        self._retry = retry_seconds
        self._settle = settle_seconds
        self._clock = clock
        self._answered = clock()
        self._lost = False
        self._process = WatchedProcess.watch(process, clock)

    @property
    def is_watched(self) -> bool:
        """Return True if this node can see the death of the writer's process."""
        return self._process is not None

    def answering(self) -> None:
        """Record an answer to the writer's question for its lease; no effect after lose(). Call it
        after the question has come and before it is answered."""
        if not self._lost:
            self._answered = self._clock()

    def lose(self) -> None:
        """Count no more lease answers for this writer. Idempotent. REQUIRES: no more of its
        questions are answered."""
        self._lost = True

    def facts(self) -> WriterFacts:
        """Return the known times of the writer's death and of the last answer."""
        died = None if self._process is None else self._process.died()
        return WriterFacts(died, self._answered if self._lost else None)

    def terms(self, acknowledge: float, patience: float) -> FenceTerms:
        """Return the durations for fencing the writer. acknowledge, patience: as in FenceTerms."""
        margin = self._lease + self._retry
        return FenceTerms(margin, self._retry, self._settle, acknowledge, patience)


class ConnectionBreaker:
    """Breaker of the endpoints from a stopped writer to this node. It also waits until none of the
    writer's bytes can still arrive.

    Knows writers and the transport, not transfers; either side of a hand-over may have one. Thread
    rule: the event loop; blocking calls run in a thread. Invariant: of concurrent callers, one
    breaks the connections, and all wait for the bytes.
    """

    def __init__(
        self, transport: Transport, receiver: Receiver, lose_all: Callable[[], Iterable[WriterLife]]
    ) -> None:
        """lose_all: gives up every connection of this node, and returns the writers of its live
        transfers and pulls."""
        self._transport = transport
        self._receiver = receiver
        self._lose_all = lose_all
        self._breaking = asyncio.Lock()
        self._settling = asyncio.Lock()
        self._settles = 0

    async def end(self, writer: WriterLife, reason: FenceReason) -> None:
        """Break the writer's endpoints if `reason` needs it. Return once no more of its bytes can
        arrive; immediately for DRAIN_ACKNOWLEDGED."""
        match reason:
            case FenceReason.DRAIN_ACKNOWLEDGED:
                return
            case FenceReason.WRITER_DEAD:
                await asyncio.to_thread(self._transport.sever_dead)
            case FenceReason.LEASE_EXPIRED:
                async with self._breaking:
                    if not writer.severed:
                        await self._break_all(writer)
        await asyncio.sleep(self._transport.settle_seconds)
        await self._settle()

    async def _break_all(self, writer: WriterLife) -> None:
        """Break all data connections and mark their writers as severed. The writer of a data
        connection cannot be known. So links to live peers break too, and connect again."""
        broken = [writer, *self._lose_all()]
        await asyncio.to_thread(self._transport.sever)
        for lost in broken:
            lost.severed = True

    async def _settle(self) -> None:
        begun = self._settles
        async with self._settling:
            if self._settles > begun:
                # Another caller's wait began after this call, and is over.
                return
            self._settles += 1
            await asyncio.to_thread(self._receiver.wait_settled)
