"""How a decode node asks a prefill node to drain a lost room: on its stream while that stands, then
by the unary call.

Owns nothing but the way of asking; what counts as an answer is transfer/fencing/writer_fence.py's.
Thread rule: the event loop.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from tasuki.transfer.fencing.evidence import FenceReason
from tasuki.transfer.fencing.writer_fence import LastResorts, WriterFence

from .handover_settings import HandoverSettings
from .prefill_link import PrefillConnection, PrefillLink


class DrainRequest:
    def __init__(
        self,
        room: int,
        generation: int,
        link: PrefillLink,
        connection: PrefillConnection,
        settings: HandoverSettings,
    ) -> None:
        self._room = room
        self._generation = generation
        self._link = link
        self._connection = connection
        self._settings = settings

    def fence(
        self, retry_seconds: float, sever: Callable[[FenceReason], Awaitable[None]]
    ) -> WriterFence:
        """Of the room that is asked about. retry_seconds: the transport's."""
        last = LastResorts(self._settings.patience, self._connection.end, sever)
        return WriterFence(self._room, self._connection.evidence(), retry_seconds, last)

    async def until_answered(
        self, fence: WriterFence, ask_on_stream: Callable[[], Awaitable[None]]
    ) -> None:
        """ask_on_stream: sends the abort and acknowledges what is answered."""
        if not fence.answered:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.acknowledge):
                    await ask_on_stream()
        while not fence.answered:
            drain = await self._link.abort(
                self._connection, self._room, self._generation, self._settings.acknowledge
            )
            if drain is None:
                await asyncio.sleep(0.1)
            else:
                fence.acknowledge(drain)
