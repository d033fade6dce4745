"""Connections of decode nodes (receivers) to this prefill node: names, heartbeats and leases. Each
receiver's stream of transfers is here too.

Owns connections. Reports a connection's end to its owner, because only the owner knows the
transfers. Thread rule: the hand-over's event loop, except peers().

Invariants: a connection lives as long as its heartbeat stream. Its name cannot be guessed and is
never used again. A renewal counts from the time its heartbeat was sent, on this node's clock.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from math import inf
from types import MappingProxyType
from typing import Protocol, TypeAlias

from tasuki.engine.messages import transfer_proto as wire
from tasuki.prefill_node.transfers import OutgoingTransfer
from tasuki.proto import handover_pb2 as pb
from tasuki.server.errors import InvalidRequest
from tasuki.transfer.control.link_status import (
    NodeProgress,
    progress_from_wire,
    progress_to_wire,
)
from tasuki.transfer.control.outbox import MOST_MESSAGES, Outbox
from tasuki.transfer.control.writer_life import WriterLife
from tasuki.transfer.failpoints import Place, reach
from tasuki.transfer.lifecycle import events as on
from tasuki.transfer.lifecycle import messages as said
from tasuki.transfer.lifecycle.heartbeats import Beating, HeartbeatTimeout
from tasuki.transfer.node_identity import NodeIdentity
from tasuki.transfer.sending.sender import Sender, connect_within, disconnected_within
from tasuki.transfer.transports.base import Transport
from tasuki.utils.loops import GuardedTasks

log = logging.getLogger(__name__)

_CONNECT_SECONDS = 5.0
_TRYING_SECONDS = 5.0
"""Additional seconds before the first heartbeat's answer: a receiver first tries this node's
metadata in a separate process."""
_LOAD_SECONDS = 1.0
"""Seconds between two heartbeats with this node's load. In between, a receiver itself counts the
work it sends."""
_PEERS_TOLD = 64
_NAME_TOLD = 64


@dataclass
class _Connection:
    node: NodeIdentity
    heart: Beating
    writer: WriterLife
    sees_pictures: bool
    beating: bool = False
    progress: NodeProgress | None = None
    """Progress of the receiver, from its latest renewal with a report of it; None before one."""


class ConnectionOwner(Protocol):
    """Owner of the connections: it supplies heartbeats' content, and is told of lost connections
    and of drained pulls."""

    @property
    def leaves(self) -> bool:
        """Return True if this prefill node is ending and has states to pass on to other nodes."""

    def progress(self) -> NodeProgress:
        """Return this node's progress, sent with each heartbeat."""

    def load(self, connection: str) -> pb.Load | None:
        """Return this node's load as seen by the connection's receiver, sent about once a second;
        None while it is unknown."""

    def connection_lost(self, name: str) -> None:
        """Handle a lost connection. It is called once, before the sender releases the connection's
        endpoints."""

    def pull_drained(self, drained: pb.DrainedPull) -> None:
        """Handle a receiver's report, in a renewal, of a pull's drain: its posted writes have
        ended."""


class ReceiverConnections:
    def __init__(
        self,
        epoch: bytes,
        sender: Sender,
        heartbeat_seconds: float,
        timeout_seconds: float,
        transport: Transport,
        owner: ConnectionOwner,
    ) -> None:
        self._owner = owner
        self._prefix = f"{epoch.hex()}-"
        self._sender = sender
        self._heartbeat_seconds = heartbeat_seconds
        self._timeout_seconds = timeout_seconds
        self._transport = transport
        self._connections: dict[str, _Connection] = {}
        self._issued = 0
        self._names: dict[bytes, list[str]] = {}
        """Names of each receiver process's connections with possibly open endpoints, by the
        process's epoch."""

    def __contains__(self, name: str) -> bool:
        return name in self._connections

    @property
    def nodes(self) -> list[str]:
        return [connection.node.name for connection in self._connections.values()]

    @property
    def names(self) -> Collection[str]:
        return self._connections.keys()

    def peers(self) -> dict[str, NodeProgress]:
        """Return the progress reported by receivers, by name; the worst values if several have one
        name. It may be called from any thread. The number of names is limited, to stay readable for
        an operator."""
        reported: dict[str, NodeProgress] = {}
        for connection in list(self._connections.values())[:_PEERS_TOLD]:
            if (progress := connection.progress) is not None:
                name = connection.node.name[:_NAME_TOLD]
                known = reported.get(name, progress)
                reported[name] = NodeProgress(
                    max(known.engine_seconds, progress.engine_seconds),
                    max(known.front_seconds, progress.front_seconds),
                )
        return reported

    def heartbeat_timeout(self, name: str) -> HeartbeatTimeout:
        """Return the connection's heartbeat timeout, counting the receiver's silence. REQUIRES:
        may_send_heartbeat(name)."""
        return self._connections[name].heart.heartbeat_timeout

    def writer(self, name: str) -> WriterLife | None:
        """Return the evidence about the receiver as the writer of pulled bytes; None if the
        connection has ended."""
        connection = self._connections.get(name)
        return None if connection is None else connection.writer

    def sees_pictures(self, name: str) -> bool:
        """Return True if the receiver's prompts with pictures may be computed here."""
        connection = self._connections.get(name)
        return connection is not None and connection.sees_pictures

    async def add(
        self, node: NodeIdentity, lease_seconds: float, *, sees_pictures: bool = False
    ) -> str:
        """Connect to a receiver and return the connection's name. lease_seconds: the receiver's
        lease as a writer. sees_pictures: True if its fields for pictures equal this node's. Raises
        TransportError."""
        await self._end_others(node)
        self._issued += 1
        # A peer that knows the name could end the connection's rooms, so it must be unguessable.
        name = f"{self._prefix}{self._issued}-{secrets.token_hex(16)}"
        self._names.setdefault(node.epoch, []).append(name)
        await connect_within(_CONNECT_SECONDS, self._sender, name, node)
        transport = self._transport
        writer = WriterLife(
            node.process, lease_seconds, transport.retry_seconds, transport.settle_seconds
        )
        heartbeat_timeout = HeartbeatTimeout(
            self._timeout_seconds, time.monotonic(), self._heartbeat_seconds, grace=_TRYING_SECONDS
        )
        beating = Beating(heartbeat_timeout)
        self._connections[name] = _Connection(node, beating, writer, sees_pictures)
        self._expect_beating(name)
        return name

    async def _end_others(self, node: NodeIdentity) -> None:
        """End the other connections of a newly connecting receiver, because it has given them
        up."""
        names = self._names.pop(node.epoch, [])
        for name in names:
            self.drop(name)
        await disconnected_within(self._timeout_seconds, self._sender, names)
        self._names = {
            epoch: names
            for epoch, names in self._names.items()
            if any(map(self._sender.has_endpoint, names))
        }

    def _expect_beating(self, name: str) -> None:
        """Drop a receiver without any heartbeat stream within its timeout after connecting; before
        that, check again later."""
        connection = self._connections.get(name)
        if connection is None or connection.beating:
            return
        if connection.heart.heartbeat_timeout.tick(time.monotonic()):
            self.drop(name)
        else:
            loop = asyncio.get_running_loop()
            loop.call_later(self._heartbeat_seconds, self._expect_beating, name)

    def may_send_heartbeat(self, name: str) -> bool:
        """Return True if the connection is known and has no heartbeat stream yet."""
        connection = self._connections.get(name)
        return connection is not None and not connection.beating

    async def heartbeats(
        self, name: str, renewals: AsyncIterator[pb.Renewal]
    ) -> AsyncGenerator[pb.Beat, None]:
        """Yield heartbeats until the receiver times out or hangs up; then end the connection.
        renewals: the receiver's answers.

        REQUIRES: may_send_heartbeat(name).
        """
        connection = self._connections[name]
        connection.beating = True
        heart = connection.heart
        heart.heartbeat_timeout.received(time.monotonic())
        reader = asyncio.create_task(self._read(name, connection, renewals))
        load_sent_at = -inf
        try:
            while name in self and not reader.done():
                now = time.monotonic()
                sequence, received = heart.heartbeat(now)
                connection.writer.answering()
                load = self._owner.load(name) if now - load_sent_at >= _LOAD_SECONDS else None
                load_sent_at = load_sent_at if load is None else now
                yield pb.Beat(
                    sequence=sequence,
                    received=received,
                    progress=progress_to_wire(self._owner.progress()),
                    load=load,
                    leaves=self._owner.leaves,
                )
                await asyncio.wait({reader}, timeout=self._heartbeat_seconds)
                if heart.heartbeat_timeout.tick(time.monotonic()):
                    log.warning("receiver %s answers no heartbeats", connection.node.name)
                    break
        finally:
            reader.cancel()
            self.drop(name)
            if reader.done() and not reader.cancelled() and reader.exception() is not None:
                log.warning("receiver %s: %s", connection.node.name, reader.exception())

    async def _read(
        self, name: str, connection: _Connection, renewals: AsyncIterator[pb.Renewal]
    ) -> None:
        async for renewal in renewals:
            asked = connection.heart.renewed(renewal.sequence, time.monotonic())
            for drained in renewal.drained:
                self._owner.pull_drained(drained)
            if renewal.HasField("progress"):
                connection.progress = progress_from_wire(renewal.progress)
            if asked is not None:
                self._sender.renew(name, asked)

    def drop(self, name: str) -> None:
        """End the connection with this name, if any. Notify its owner, and disconnect the sender.
        Idempotent."""
        connection = self._connections.pop(name, None)
        if connection is None:
            return
        log.info("receiver %s is gone", connection.node.name)
        connection.writer.lose()
        self._owner.connection_lost(name)
        self._sender.disconnect(name)

    def drop_all(self) -> None:
        for name in list(self._connections):
            self.drop(name)


_MOST_TRANSFERS = 4096
"""Most transfers on one stream: a decode node wants at most one for each of its batch slots."""
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
OpenTransfer: TypeAlias = Callable[[str, pb.ReceiverMessage, Say], OutgoingTransfer]
"""Function opening a transfer for a connection's Reserve or Fetch message. Raises
TransferRefused."""
_OPENING = frozenset({"reserve", "fetch"})


class TransferRefused(Exception):
    """Rejection of a Reserve or Fetch message, with the reason. No transfer is opened for it."""


class ReceiverStream:
    """One receiver's stream of messages about its transfers.

    Each incoming message is given to its transfer; the transfers' messages are sent in order, in
    batches. Owns the set of transfers on the stream, from Reserve to Closed, and the outbox. Knows
    no state machine and no caches. Thread rule: the event loop.

    Invariants: say() never waits. Nothing is sent for a transfer after Closed. An invalid message
    ends its own transfer; an unreadable batch ends the stream. Once the receiver is lost every
    transfer is notified, and run() returns when all of them have ended.
    """

    def __init__(self, connection: str, open_transfer: OpenTransfer, write_seconds: float) -> None:
        """connection: name of the connection. open_transfer: opens a transfer for a message.
        write_seconds: limit for the receiver to take one batch."""
        self.connection = connection
        self._open_transfer = open_transfer
        self._write_seconds = write_seconds
        self._transfers: dict[int, OutgoingTransfer] = {}
        self._outbox: Outbox[pb.SenderMessage] = Outbox()
        self._leaving = False

    async def run(
        self,
        first: pb.ReceiverBatch,
        others: AsyncIterator[pb.ReceiverBatch],
        write: Callable[[pb.SenderBatch], Awaitable[None]],
    ) -> None:
        """Run until every transfer has ended, and the receiver has hung up or is lost. first,
        others: batches from the receiver. write: sends a batch to it."""
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
        """End the stream's transfers, because the receiver is lost. Idempotent."""
        self._leaving = True
        for transfer in list(self._transfers.values()):
            transfer.put(on.ReceiverLost())
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
        """Handle the messages of a batch from the receiver. Raises InvalidRequest, also for too
        many messages."""
        if len(batch.messages) > MOST_MESSAGES:
            raise InvalidRequest(
                f"a batch has {len(batch.messages)} messages, at most {MOST_MESSAGES}"
            )
        for message in batch.messages:
            self._take(message)

    def _take(self, message: pb.ReceiverMessage) -> None:
        kind = message.WhichOneof("message")
        transfer = self._transfers.get(message.room)
        if transfer is None:
            if kind in _OPENING:
                self._reserve(message)
            return
        match kind:
            case "grant":
                granted = wire.GRANT.from_wire(message.grant, transfer_id=transfer.id)
                transfer.put(said.Grant(granted.generation, granted.destination, granted))
            case "abort":
                transfer.put(said.Abort())
            case "pull_done":
                transfer.hear_pull(message.pull_done)
            case "pull_failed":
                transfer.hear_pull(message.pull_failed)
            case "hang_up":
                transfer.put(on.ReceiverLost())
            case other:
                transfer.put(on.Stopped(f"{other} is not expected on a transfer that is open"))

    def _reserve(self, message: pb.ReceiverMessage) -> None:
        number = message.room
        try:
            if self._leaving:
                raise TransferRefused("the connection is over")
            if len(self._transfers) >= _MOST_TRANSFERS:
                raise TransferRefused(
                    f"{_MOST_TRANSFERS} transfers are open on this stream: end some"
                )
            say = partial(self._say, number)
            self._transfers[number] = self._open_transfer(self.connection, message, say)
        except TransferRefused as refusal:
            closed = pb.Closed(reason=str(refusal))
            self._outbox.put(pb.SenderMessage(closed=closed, room=number))

    def _say(self, number: int, message: pb.SenderMessage) -> None:
        """Send a transfer's message to the receiver, unless the transfer is closed. number: id of
        the transfer."""
        if number not in self._transfers:
            return
        message.room = number
        self._outbox.put(message)
        if message.WhichOneof("message") == "closed":
            del self._transfers[number]
            self._end_if_empty()

    def _end_if_empty(self) -> None:
        if self._leaving and not self._transfers:
            self._outbox.close()

    def _stop(self, reason: str) -> None:
        for transfer in list(self._transfers.values()):
            transfer.put(on.Stopped(reason))

    async def _write(self, write: Callable[[pb.SenderBatch], Awaitable[None]]) -> None:
        """Write the outbox's batches until it closes. Raises TimeoutError, and the stream's own
        errors if the receiver is lost."""
        while taken := await self._outbox.take():
            messages = [message for message in taken if self._reached(_BEFORE_TELLING, message)]
            try:
                batch = pb.SenderBatch(messages=messages)
                await asyncio.wait_for(write(batch), self._write_seconds)
            finally:
                # This runs also if the receiver has hung up meanwhile, as it may after Done.
                for message in messages:
                    self._reached(_AFTER_TELLING, message)

    def _reached(self, places: Mapping[str, Place], message: pb.SenderMessage) -> bool:
        """Reach the failpoint in `places` for this kind of message. Return False if it raised; only
        the message's transfer then ends."""
        kind = message.WhichOneof("message")
        if kind not in places:
            return True
        try:
            reach(places[kind])
        except Exception as error:
            log.exception("transfer %d broke", message.room)
            transfer = self._transfers.get(message.room)
            if transfer is not None:
                transfer.put(on.Stopped(f"internal error: {error!r}"))
            return False
        return True
