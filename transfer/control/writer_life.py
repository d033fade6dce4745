"""One peer as a writer into this node's arena, over one connection: what shows that it writes no
more, and what must happen between that and the use of its ids.

Owns the pidfd on the writer's process, the time of our last answer, and the order of breaking
connections and of waiting for what they brought. Knows no rooms and no messages; `rooms/fence.py`
judges. Invariant: after lose() no answer counts, so that the writer's lease runs out.
"""

import asyncio
import os
import select
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Self, TypeVar

from tasuki.transfer.errors import PeerSilent
from tasuki.transfer.node_identity import ProcessIdentity, _shares_network, _start_ticks
from tasuki.transfer.receiving.receiver import Receiver
from tasuki.transfer.rooms.fence import FenceReason, FenceTerms, WriterFacts
from tasuki.transfer.rooms.heartbeats import Silence
from tasuki.transfer.transports.base import Transport

Result = TypeVar("Result")


async def unless_silent(awaited: Awaitable[Result], silence: Silence) -> Result:
    """What is awaited of the peer, cancelled where the peer is lost first. Raises PeerSilent, and
    what the awaited raises."""
    waiting = asyncio.ensure_future(awaited)
    try:
        while not waiting.done():
            await asyncio.wait({waiting}, timeout=silence.period)
            if not waiting.done() and silence.tick(time.monotonic()):
                raise PeerSilent(f"the peer said nothing for {silence.limit} s")
        return waiting.result()
    finally:
        waiting.cancel()


class WatchedProcess:
    """A pidfd on the writer, held from while it lived."""

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
        """Return None where the writer is on another host, or cannot be watched: then this way is
        closed. So it is where its network is not ours: what a death leaves in the network's
        connections could not be seen."""
        if not writer.here() or not _shares_network(writer.pid):
            return None
        try:
            pidfd = os.pidfd_open(writer.pid)
        except OSError:
            return None
        try:
            # Read after the open: from here on the pidfd names this very process.
            same = _start_ticks(writer.pid) == writer.start_ticks
        except (OSError, ValueError, IndexError):
            same = False
        if not same:
            os.close(pidfd)
            return None
        return cls(pidfd, clock)

    def died(self) -> float | None:
        """Return when the process was first seen to be dead; None while it lives."""
        if self._died is None and self._pidfd is not None and self._poller.poll(0):
            self._died = self._clock()
        return self._died

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Idempotent; a death that was seen before stays seen."""
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None


class WriterLife:
    """Thread rule: one thread writes, any reads."""

    def __init__(
        self,
        process: ProcessIdentity,
        lease_seconds: float,
        retry_seconds: float,
        settle_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """lease_seconds: the writer's own word on how long it posts after it last asked and was
        answered. retry_seconds, settle_seconds: the transport's."""
        self.severed = False
        """Whether the transport broke all that led here after this writer was lost. Endpoints do
        not come back by themselves, so it has none left."""
        self._lease = lease_seconds
        self._retry = retry_seconds
        self._settle = settle_seconds
        self._clock = clock
        self._answered = clock()
        self._lost = False
        self._process = WatchedProcess.watch(process, clock)

    @property
    def is_watched(self) -> bool:
        """Whether the death of its process is seen here."""
        return self._process is not None

    def answering(self) -> None:
        """Call when the writer has asked and before it is answered."""
        if not self._lost:
            self._answered = self._clock()

    def lose(self) -> None:
        """Idempotent. REQUIRES: nothing is answered any more."""
        self._lost = True

    def facts(self) -> WriterFacts:
        """Return what is known of the writer now."""
        died = None if self._process is None else self._process.died()
        return WriterFacts(died, self._answered if self._lost else None)

    def terms(self, acknowledge: float, patience: float) -> FenceTerms:
        """Return the durations of a fence of what it writes. acknowledge, patience: as there."""
        margin = self._lease + self._retry
        return FenceTerms(margin, self._retry, self._settle, acknowledge, patience)


class ConnectionBreaker:
    """Breaks what leads here from a writer that can write no more, until nothing of it lands.

    Knows writers and the transport, not rooms; either side of a hand-over may have one. Thread
    rule: the event loop; what blocks runs in a thread. Invariant: of those who ask at once, one
    breaks and one waits for all.
    """

    def __init__(
        self,
        transport: Transport,
        receiver: Receiver,
        lose_all: Callable[[], Iterable[WriterLife]],
    ) -> None:
        """lose_all: gives every connection up; returns the writers of live rooms and pulls."""
        self._transport = transport
        self._receiver = receiver
        self._lose_all = lose_all
        self._breaking = asyncio.Lock()
        self._settling = asyncio.Lock()
        self._settles = 0

    async def end(self, writer: WriterLife, reason: FenceReason) -> None:
        """Until nothing of the writer lands that has not landed."""
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
        """Which data connection is whose cannot be known: links to those that live are broken too,
        and connect anew."""
        broken = [writer, *self._lose_all()]
        await asyncio.to_thread(self._transport.sever)
        for lost in broken:
            lost.severed = True

    async def _settle(self) -> None:
        begun = self._settles
        async with self._settling:
            if self._settles > begun:
                # Another's wait began after this call, and is over.
                return
            self._settles += 1
            await asyncio.to_thread(self._receiver.wait_settled)
