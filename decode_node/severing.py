"""What must happen between a fence's reason and the use of its ids: nothing of that writer may land
any more.

Owns the order of breaking connections and of waiting for what they brought. Knows links and the
transport, not rooms. Thread rule: the event loop; what blocks runs in a thread.
Invariant: of those who ask at once, one breaks and one waits for all.
"""

import asyncio
from collections.abc import Callable, Iterable

from ..transfer.fence import FenceReason
from ..transfer.receiver import Receiver
from ..transfer.transports.base import Transport
from .prefill_link import PrefillConnection


class Severing:
    def __init__(
        self,
        transport: Transport,
        receiver: Receiver,
        lose_all: Callable[[], Iterable[PrefillConnection]],
    ) -> None:
        """lose_all: gives every link up, and tells of the connections that rooms still have."""
        self._transport = transport
        self._receiver = receiver
        self._lose_all = lose_all
        self._breaking = asyncio.Lock()
        self._settling = asyncio.Lock()
        self._settles = 0

    async def end(self, connection: PrefillConnection, reason: FenceReason) -> None:
        """Until nothing of the connection's writer lands that has not landed."""
        match reason:
            case FenceReason.DRAIN_ACKNOWLEDGED:
                return
            case FenceReason.WRITER_DEAD:
                await asyncio.to_thread(self._transport.sever_dead)
            case FenceReason.LEASE_EXPIRED:
                async with self._breaking:
                    if not connection.severed:
                        await self._break_all()
        await asyncio.sleep(self._transport.settle_seconds)
        await self._settle()

    async def _break_all(self) -> None:
        """Which data connection is whose cannot be told: links to those that live are broken too,
        and connect anew."""
        broken = list(self._lose_all())
        await asyncio.to_thread(self._transport.sever)
        for connection in broken:
            connection.severed = True

    async def _settle(self) -> None:
        begun = self._settles
        async with self._settling:
            if self._settles > begun:
                # Another's wait began after this call, and is over.
                return
            self._settles += 1
            await asyncio.to_thread(self._receiver.wait_settled)
