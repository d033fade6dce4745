"""One receiver's stream of rooms: a message that comes is put before the room that it is for, what
rooms say leaves in order, in batches.

Owns which rooms are on the stream, from Reserve to Closed, and the outbox. Knows no machine and no
caches. Thread rule: the event loop.
Invariants: say() never waits; nothing is said of a room after Closed; what makes no sense in a
message refuses its own room, what cannot be read ends the stream; once the receiver is gone every
room on it hears so, and run() returns when all of them are over.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import TypeAlias

from tasuki.proto import handover_pb2 as pb
from tasuki.server.errors import InvalidRequest
from tasuki.transfer.failpoints import Place, reach
from tasuki.transfer.rooms.outbox import MOST_MESSAGES, Outbox
from tasuki.transfer.rooms.room import Stopped
from tasuki.utils.loops import GuardedTasks

from . import handover_messages as wire
from .handover_room import AbortAsked, OutgoingHandover, ReceiverLost

log = logging.getLogger(__name__)

_MOST_ROOMS = 4096
"""On one stream: a decode node asks for as many as it has places for answers."""
_BEFORE_TELLING = MappingProxyType(
    {
        "accepted": Place.SENDER_BEFORE_ACCEPTED,
        "ready": Place.SENDER_BEFORE_READY,
        "done": Place.SENDER_BEFORE_DONE,
    }
)
_AFTER_TELLING = MappingProxyType(
    {
        "accepted": Place.SENDER_AFTER_ACCEPTED,
        "ready": Place.SENDER_AFTER_READY,
        "done": Place.SENDER_AFTER_DONE,
    }
)

Say: TypeAlias = Callable[[pb.SenderMessage], None]
OpenRoom: TypeAlias = Callable[[str, pb.ReceiverMessage, Say], OutgoingHandover]
"""Of a connection, by a Reserve or a Fetch. Raises RoomRefused."""
_OPENING = frozenset({"reserve", "fetch"})


class RoomRefused(Exception):
    """A Reserve that opens no room; says why."""


class ReceiverStream:
    def __init__(self, connection: str, open_room: OpenRoom, write_seconds: float) -> None:
        """write_seconds: for that long one batch may wait for the receiver to take it."""
        self.connection = connection
        self._open_room = open_room
        self._write_seconds = write_seconds
        self._rooms: dict[int, OutgoingHandover] = {}
        self._outbox: Outbox[pb.SenderMessage] = Outbox()
        self._leaving = False

    async def run(
        self,
        first: pb.ReceiverBatch,
        others: AsyncIterator[pb.ReceiverBatch],
        write: Callable[[pb.SenderBatch], Awaitable[None]],
    ) -> None:
        """Until the receiver has hung up, or the connection is lost, and every room is over."""
        tasks = GuardedTasks("receiver", lambda error: self._stop(f"internal error: {error!r}"))
        tasks.start(partial(self._read, first, others))
        try:
            await self._write(write)
        except TimeoutError:
            log.warning("a receiver takes no message")
        finally:
            self.lose()
            await tasks.end()

    def lose(self) -> None:
        """The receiver listens no more. Idempotent."""
        self._leaving = True
        for room in list(self._rooms.values()):
            room.put(ReceiverLost())
        self._end_if_empty()

    async def _read(self, first: pb.ReceiverBatch, others: AsyncIterator[pb.ReceiverBatch]) -> None:
        try:
            self._take_batch(first)
            async for batch in others:
                self._take_batch(batch)
        except InvalidRequest as error:
            self._stop(str(error))
        finally:
            self.lose()

    def _take_batch(self, batch: pb.ReceiverBatch) -> None:
        """Raises InvalidRequest."""
        if len(batch.messages) > MOST_MESSAGES:
            raise InvalidRequest(
                f"a batch has {len(batch.messages)} messages, at most {MOST_MESSAGES}"
            )
        for message in batch.messages:
            self._take(message)

    def _take(self, message: pb.ReceiverMessage) -> None:
        kind = message.WhichOneof("message")
        room = self._rooms.get(message.room)
        if room is None:
            if kind in _OPENING:
                self._reserve(message)
            return
        match kind:
            case "grant":
                room.put(wire.grant_from_wire(room.room, message.grant))
            case "abort":
                room.put(AbortAsked())
            case "pull_done":
                room.put(message.pull_done)
            case "pull_failed":
                room.put(message.pull_failed)
            case "hang_up":
                room.put(ReceiverLost())
            case other:
                room.put(Stopped(f"{other} is not expected on a room that is open"))

    def _reserve(self, message: pb.ReceiverMessage) -> None:
        number = message.room
        try:
            if self._leaving:
                raise RoomRefused("the connection is over")
            if len(self._rooms) >= _MOST_ROOMS:
                raise RoomRefused(f"{_MOST_ROOMS} rooms are open on this stream: end some")
            say = partial(self._say, number)
            self._rooms[number] = self._open_room(self.connection, message, say)
        except RoomRefused as refusal:
            closed = pb.Closed(reason=str(refusal))
            self._outbox.put(pb.SenderMessage(closed=closed, room=number))

    def _say(self, number: int, message: pb.SenderMessage) -> None:
        """A room's own, until it has closed."""
        if number not in self._rooms:
            return
        message.room = number
        self._outbox.put(message)
        if message.WhichOneof("message") == "closed":
            del self._rooms[number]
            self._end_if_empty()

    def _end_if_empty(self) -> None:
        if self._leaving and not self._rooms:
            self._outbox.close()

    def _stop(self, reason: str) -> None:
        for room in list(self._rooms.values()):
            room.put(Stopped(reason))

    async def _write(self, write: Callable[[pb.SenderBatch], Awaitable[None]]) -> None:
        """Raises TimeoutError, and what the stream does where the receiver is gone."""
        while said := await self._outbox.take():
            messages = [message for message in said if self._reached(_BEFORE_TELLING, message)]
            try:
                batch = pb.SenderBatch(messages=messages)
                await asyncio.wait_for(write(batch), self._write_seconds)
            finally:
                # Also where the receiver has hung up meanwhile, as it may after Done.
                for message in messages:
                    self._reached(_AFTER_TELLING, message)

    def _reached(self, places: Mapping[str, Place], message: pb.SenderMessage) -> bool:
        """Whether nothing breaks at the place of that kind of message; what does ends its room
        alone."""
        kind = message.WhichOneof("message")
        if kind not in places:
            return True
        try:
            reach(places[kind])
        except Exception as error:
            log.exception("room %d broke", message.room)
            room = self._rooms.get(message.room)
            if room is not None:
                room.put(Stopped(f"internal error: {error!r}"))
            return False
        return True
