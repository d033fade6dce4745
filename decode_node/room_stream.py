"""The stream of a connection's rooms: what they say leaves in order, in batches; what comes is put
before the room that it is for.

Owns the call, from the first room to its end. Knows no machine. Thread rule: the event loop.
Invariants: say() never waits, so that nothing a peer does stands between a room and its next event;
whatever becomes of the call (its channel closed before it was opened, a write that never ends, a
peer that does not read) each room on it gets StreamBroke exactly once, and no message after it.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

import grpc

from tasuki.proto import handover_pb2 as pb
from tasuki.transfer import peer_values
from tasuki.transfer.control.outbox import MOST_MESSAGES, Outbox
from tasuki.transfer.failpoints import Place, reach

log = logging.getLogger(__name__)

Call: TypeAlias = "grpc.aio.StreamStreamCall[pb.ReceiverBatch, pb.SenderBatch]"

_AFTER_SAYING = MappingProxyType(
    {"reserve": Place.RECEIVER_AFTER_RESERVE, "grant": Place.RECEIVER_AFTER_GRANT}
)
_LAST_WORDS_SECONDS = 1.0
"""After a write failed: what the peer said before may still be on its way, and says why."""
_CLOSED = "the prefill node closed the room"


@dataclass(frozen=True)
class StreamBroke:
    """Of this room nothing more comes."""

    reason: str


Hear: TypeAlias = Callable[[pb.SenderMessage | StreamBroke], None]


def _nobody(message: pb.SenderMessage | StreamBroke) -> None:
    """Of a line that is over."""


class RoomLine:
    """One room's part of a stream."""

    def __init__(self, room: int, hear: Hear, outbox: Outbox[pb.ReceiverMessage]) -> None:
        self.room = room
        self.over = False
        """Whether the room has got StreamBroke, or has hung up."""
        self._hear = hear
        self._outbox = outbox

    def say(self, message: pb.ReceiverMessage) -> None:
        """Dropped where the line is over."""
        if not self.over:
            message.room = self.room
            self._outbox.put(message)

    def hear(self, message: pb.SenderMessage) -> None:
        if not self.over:
            self._hear(message)

    def break_off(self, reason: str) -> None:
        """Idempotent."""
        if not self.over:
            self.over = True
            receive, self._hear = self._hear, _nobody
            receive(StreamBroke(reason))

    def hang_up(self) -> None:
        """The room listens no more. Idempotent; nothing where the peer has closed it."""
        self.say(pb.ReceiverMessage(hang_up=pb.HangUp()))
        self.end()

    def end(self) -> None:
        """Listen no more and say nothing. Idempotent."""
        self.over = True
        # Else room and line would hold each other until a full collection.
        self._hear = _nobody


class RoomStream:
    def __init__(
        self, connection: str, open_call: Callable[[], Call], write_seconds: float
    ) -> None:
        """connection: its name, as the peer gave it. write_seconds: for that long one batch may
        wait for the peer to take it."""
        self.open = True
        """Whether rooms may join: what ails a call that ends is not theirs."""
        self._connection = connection
        self._open_call = open_call
        self._write_seconds = write_seconds
        self._lines: dict[int, RoomLine] = {}
        self._outbox: Outbox[pb.ReceiverMessage] = Outbox()
        self._carrying: asyncio.Task[None] | None = None

    def join(self, room: int, hear: Hear) -> RoomLine:
        """A line for the room. hear: called with what comes. REQUIRES: open, and no line of that
        room is there."""
        line = self._lines[room] = RoomLine(room, hear, self._outbox)
        if self._carrying is None:
            self._carrying = asyncio.get_running_loop().create_task(self._run(), name="rooms")
        return line

    def leave(self, line: RoomLine) -> None:
        """The room is over here: it hangs up, unless the peer did. Idempotent."""
        line.hang_up()
        self._forget(line)

    def part(self, line: RoomLine) -> None:
        """Forget the line of a room that is done: the peer closes it unasked. Idempotent."""
        line.end()
        self._forget(line)

    def _forget(self, line: RoomLine) -> None:
        if self._lines.get(line.room) is line:
            del self._lines[line.room]

    def end(self, reason: str) -> None:
        """Break off all lines, and hang up. Idempotent."""
        self._break_off(reason)
        if self._carrying is not None:
            self._carrying.cancel()

    async def _run(self) -> None:
        try:
            reason = await self._carry(self._open_call())
        except Exception as error:
            # As where the channel was closed after the connection was chosen for a room.
            log.debug("no stream of rooms: %r", error)
            reason = f"the room's stream could not be used: {error!r}"
        self._break_off(reason)

    def _break_off(self, reason: str) -> None:
        self.open = False
        lines, self._lines = self._lines, {}
        for line in lines.values():
            line.break_off(reason)

    async def _carry(self, call: Call) -> str:
        """Why the call ended."""
        reading = asyncio.ensure_future(self._read(call))
        writing = asyncio.ensure_future(self._write(call))
        try:
            await asyncio.wait({reading, writing}, return_when=asyncio.FIRST_COMPLETED)
            self.open = False
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
            while isinstance(batch := await call.read(), pb.SenderBatch):
                if len(batch.messages) > MOST_MESSAGES:
                    return f"the prefill node said {len(batch.messages)} messages at once"
                for message in batch.messages:
                    self._heard(message)
        except grpc.aio.AioRpcError as error:
            return f"the room's stream broke: {error.code().name}: {error.details()}"
        return _CLOSED

    def _heard(self, message: pb.SenderMessage) -> None:
        line = self._lines.get(message.room)
        if line is None:
            # It has crossed the end of its room.
            return
        if message.WhichOneof("message") != "closed":
            line.hear(message)
            return
        del self._lines[message.room]
        why = peer_values.text(message.closed.reason)
        line.break_off(f"{_CLOSED}: {why}" if why else _CLOSED)

    async def _write(self, call: Call) -> str:
        connection = self._connection
        while messages := await self._outbox.take():
            batch = pb.ReceiverBatch(connection_id=connection, messages=messages)
            connection = ""
            try:
                # Never returns by itself where the channel closes before the call's metadata left.
                await asyncio.wait_for(call.write(batch), self._write_seconds)
            except TimeoutError:
                return f"the prefill node took no message for {self._write_seconds} s"
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
                return f"the room's stream broke: {error!r}"
            for message in messages:
                self._reached(message)
        raise AssertionError("the outbox is never closed")

    def _reached(self, message: pb.ReceiverMessage) -> None:
        """What breaks at the place of that kind of message ends its room alone."""
        kind = message.WhichOneof("message")
        if kind not in _AFTER_SAYING:
            return
        try:
            reach(_AFTER_SAYING[kind])
        except Exception as error:
            log.exception("room %d broke", message.room)
            line = self._lines.pop(message.room, None)
            if line is not None:
                self._outbox.put(pb.ReceiverMessage(hang_up=pb.HangUp(), room=line.room))
                line.break_off(f"the room's stream could not be used: {error!r}")


def _retrieved(task: "asyncio.Future[str]") -> None:
    """So that nobody reports what the end of the stream has reported already."""
    if not task.cancelled():
        task.exception()
