"""What must happen between a fence's reason and the use of its ids: nothing of that writer may land
any more.

Owns the order of breaking connections and of waiting for what they brought. Knows writers and the
transport, not rooms; either side of a hand-over may have one. Thread rule: the event loop; what
blocks runs in a thread.
Invariant: of those who ask at once, one breaks and one waits for all.
"""

import asyncio
from collections.abc import Callable, Iterable

from tasuki.transfer.receiving.receiver import Receiver
from tasuki.transfer.rooms.fence import FenceReason
from tasuki.transfer.transports.base import Transport

from .writer_life import WriterLife


class ConnectionBreaker:
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
