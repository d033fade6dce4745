"""A room's stream to its prefill node: what the room says leaves in order, what comes is put before
the room.

Owns the call, from its opening to its end. Knows no machine. Thread rule: the event loop.
Invariants: say() never waits, so that nothing a peer does stands between a room and its next event;
whatever becomes of the call (its channel closed before it was opened, a write that never ends, a
peer that does not read) the room gets StreamBroke exactly once, and no message after it.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

import grpc

from tasuki.proto import handover_pb2 as pb
from tasuki.transfer.failpoints import Place, reach

log = logging.getLogger(__name__)

Call: TypeAlias = "grpc.aio.StreamStreamCall[pb.ReceiverMessage, pb.SenderMessage]"

_AFTER_SAYING = MappingProxyType(
    {"reserve": Place.RECEIVER_AFTER_RESERVE, "grant": Place.RECEIVER_AFTER_GRANT}
)
_LAST_WORDS_SECONDS = 1.0
"""After a write failed: what the peer said before may still be on its way, and says why."""


@dataclass(frozen=True)
class StreamBroke:
    reason: str


class RoomStream:
    def __init__(
        self,
        room: int,
        open_call: Callable[[], Call],
        hear: Callable[[pb.SenderMessage | StreamBroke], None],
        write_seconds: float,
    ) -> None:
        """write_seconds: for that long one message may wait for the peer to take it."""
        self.over = False
        """Whether the room has got StreamBroke."""
        self._room = room
        self._open_call = open_call
        self._hear = hear
        self._write_seconds = write_seconds
        self._said: asyncio.Queue[pb.ReceiverMessage] = asyncio.Queue()

    def say(self, message: pb.ReceiverMessage) -> None:
        """Dropped where the stream is over."""
        self._said.put_nowait(message)

    async def run(self) -> None:
        """Until the call ends; cancelled, it hangs up."""
        try:
            reason = await self._carry(self._open_call())
        except Exception as error:
            # As where the channel was closed after the connection was chosen for this room.
            log.debug("room %d: no stream: %r", self._room, error)
            reason = f"the room's stream could not be used: {error!r}"
        self.over = True
        self._hear(StreamBroke(reason))

    async def _carry(self, call: Call) -> str:
        """Why the call ended."""
        reading = asyncio.ensure_future(self._read(call))
        writing = asyncio.ensure_future(self._write(call))
        try:
            await asyncio.wait({reading, writing}, return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                await asyncio.wait({reading}, timeout=_LAST_WORDS_SECONDS)
            return await (reading if reading.done() else writing)
        finally:
            # Without a wait: a call whose channel is gone may never end what it began.
            for task in (reading, writing):
                task.cancel()
                task.add_done_callback(_retrieved)
            call.cancel()

    async def _read(self, call: Call) -> str:
        try:
            while isinstance(message := await call.read(), pb.SenderMessage):
                self._hear(message)
        except grpc.aio.AioRpcError as error:
            return f"the room's stream broke: {error.code().name}: {error.details()}"
        return "the prefill node closed the room"

    async def _write(self, call: Call) -> str:
        while True:
            message = await self._said.get()
            try:
                # Never returns by itself where the channel closes before the call's metadata left.
                await asyncio.wait_for(call.write(message), self._write_seconds)
            except TimeoutError:
                return f"the prefill node took no message for {self._write_seconds} s"
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
                return f"the room's stream broke: {error!r}"
            kind = message.WhichOneof("message")
            if kind in _AFTER_SAYING:
                reach(_AFTER_SAYING[kind])


def _retrieved(task: "asyncio.Future[str]") -> None:
    """So that nobody reports what the end of the stream has reported already."""
    if not task.cancelled():
        task.exception()
