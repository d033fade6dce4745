"""The stream of a connection's rooms: what they say leaves in order, in batches; what comes is put
before the room that it is for.

Owns the call, from the first room to its end. Knows no machine. Thread rule: the event loop.
Invariants: say() never waits, so that nothing a peer does stands between a room and its next event;
whatever becomes of the call (its channel closed before it was opened, a write that never ends, a
peer that does not read) each room on it hears that it broke exactly once, and nothing after that.
"""

import asyncio
import logging
from collections.abc import Callable
from types import MappingProxyType
from typing import Protocol, TypeAlias

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


class RoomOnStream(Protocol):
    """A room as its stream sees it."""

    @property
    def room(self) -> int: ...
    def hear(self, message: pb.SenderMessage) -> None:
        """Take what the peer says in it."""

    def stream_broke(self, reason: str) -> None:
        """Nothing more comes on the stream."""


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
        self._rooms: dict[int, RoomOnStream] = {}
        """Those that listen: from join() until they leave, or the peer closes them."""
        self._outbox: Outbox[pb.ReceiverMessage] = Outbox()
        self._carrying: asyncio.Task[None] | None = None

    def join(self, room: RoomOnStream) -> None:
        """REQUIRES: open, and no room of that number is on it."""
        self._rooms[room.room] = room
        if self._carrying is None:
            self._carrying = asyncio.get_running_loop().create_task(self._run(), name="rooms")

    def say(self, room: RoomOnStream, message: pb.ReceiverMessage) -> None:
        """Dropped where the room listens no more."""
        if self._rooms.get(room.room) is room:
            message.room = room.room
            self._outbox.put(message)

    def leave(self, room: RoomOnStream) -> None:
        """The room is over here: it hangs up, unless the peer did. Idempotent."""
        self.say(room, pb.ReceiverMessage(hang_up=pb.HangUp()))
        self.part(room)

    def part(self, room: RoomOnStream) -> None:
        """Forget a room that is done: the peer closes it unasked. Idempotent."""
        if self._rooms.get(room.room) is room:
            del self._rooms[room.room]

    def end(self, reason: str) -> None:
        """Break off all rooms, and hang up. Idempotent."""
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
        rooms, self._rooms = self._rooms, {}
        for room in rooms.values():
            room.stream_broke(reason)

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
        room = self._rooms.get(message.room)
        if room is None:
            # It has crossed the end of its room.
            return
        if message.WhichOneof("message") != "closed":
            room.hear(message)
            return
        del self._rooms[message.room]
        why = peer_values.text(message.closed.reason)
        room.stream_broke(f"{_CLOSED}: {why}" if why else _CLOSED)

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
            room = self._rooms.get(message.room)
            if room is not None:
                self.leave(room)
                room.stream_broke(f"the room's stream could not be used: {error!r}")


def _retrieved(task: "asyncio.Future[str]") -> None:
    """So that nobody reports what the end of the stream has reported already."""
    if not task.cancelled():
        task.exception()
