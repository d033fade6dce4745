"""One life of the link to a prefill node: the node's known facts, and the stream of its rooms.

Messages of rooms leave in order, in batches. Each incoming message is put before its room. Owns the
call, from the first room to its end. Knows no state machine. Thread rule: the event loop.

Invariants: say() never waits, so a peer cannot delay a room's next event. The call may fail in any
way: its channel is closed before it was opened, a write never ends, or the peer does not read. Each
room on it is then notified exactly once, and of nothing after its failure.
"""

import asyncio
import logging
import math
from collections.abc import Callable
from types import MappingProxyType
from typing import Protocol, TypeAlias

import grpc

from tasuki.proto import handover_pb2 as pb
from tasuki.proto import handover_pb2_grpc
from tasuki.routing.node_load import NodeLoad, PrefillSeconds
from tasuki.routing.prefix_hints import HintTrust
from tasuki.transfer import peer_values
from tasuki.transfer.control.link_status import NodeProgress, progress_to_wire
from tasuki.transfer.control.outbox import MOST_MESSAGES, Outbox
from tasuki.transfer.control.writer_life import WriterLife
from tasuki.transfer.failpoints import Place, reach
from tasuki.transfer.node_identity import NodeIdentity
from tasuki.transfer.protocol.messages import drain_to_wire, lease_from_wire, node_from_wire
from tasuki.transfer.reports import Drain
from tasuki.transfer.transports.base import Transport

log = logging.getLogger(__name__)

Call: TypeAlias = "grpc.aio.StreamStreamCall[pb.ReceiverBatch, pb.SenderBatch]"

_AFTER_SAYING = MappingProxyType(
    {"reserve": Place.RECEIVER_AFTER_RESERVE, "grant": Place.RECEIVER_AFTER_GRANT}
)
_LAST_WORDS_SECONDS = 1.0
"""Seconds to read on after a write failed: the peer's last messages may still be on their way, with
the reason."""
_CLOSED = "the prefill node closed the transfer"


class TransferOnStream(Protocol):
    """Interface of a room for its stream."""

    @property
    def transfer_id(self) -> int: ...
    def hear(self, message: pb.SenderMessage) -> None:
        """Take a message of the peer for this room."""

    def stream_broke(self, reason: str) -> None:
        """Handle the end of the stream: no more messages come."""


class TransferStream:
    def __init__(
        self, connection: str, open_call: Callable[[], Call], write_seconds: float
    ) -> None:
        """connection: its name, given by the peer. write_seconds: limit for the peer to take one
        batch."""
        self.open = True
        """True while rooms may join. False once the call ends, so its failure does not reach new
        rooms."""
        self._connection = connection
        self._open_call = open_call
        self._write_seconds = write_seconds
        self._transfers: dict[int, TransferOnStream] = {}
        """Rooms receiving messages: from join() until they leave or the peer closes them."""
        self._outbox: Outbox[pb.ReceiverMessage] = Outbox()
        self._carrying: asyncio.Task[None] | None = None

    def join(self, transfer: TransferOnStream) -> None:
        """Add a room to the stream. REQUIRES: `open` is True, and no room with its number is on the
        stream."""
        self._transfers[transfer.transfer_id] = transfer
        if self._carrying is None:
            self._carrying = asyncio.get_running_loop().create_task(self._run(), name="rooms")

    def say(self, transfer: TransferOnStream, message: pb.ReceiverMessage) -> None:
        """Send a message of a room; dropped if the room is no longer on the stream."""
        if self._transfers.get(transfer.transfer_id) is transfer:
            message.room = transfer.transfer_id
            self._outbox.put(message)

    def leave(self, transfer: TransferOnStream) -> None:
        """Remove an ended room, and hang up unless the peer did. Idempotent."""
        self.say(transfer, pb.ReceiverMessage(hang_up=pb.HangUp()))
        self.part(transfer)

    def part(self, transfer: TransferOnStream) -> None:
        """Forget a finished room: the peer closes it unasked. Idempotent."""
        if self._transfers.get(transfer.transfer_id) is transfer:
            del self._transfers[transfer.transfer_id]

    def end(self, reason: str) -> None:
        """Break off all rooms, and hang up. Idempotent."""
        self._break_off(reason)
        if self._carrying is not None:
            self._carrying.cancel()

    async def _run(self) -> None:
        try:
            reason = await self._carry(self._open_call())
        except Exception as error:
            # For example, the channel was closed after the connection was chosen.
            log.debug("no stream of transfers: %r", error)
            reason = f"the transfer's stream could not be used: {error!r}"
        self._break_off(reason)

    def _break_off(self, reason: str) -> None:
        self.open = False
        transfers, self._transfers = self._transfers, {}
        for transfer in transfers.values():
            transfer.stream_broke(reason)

    async def _carry(self, call: Call) -> str:
        """Carry messages both ways until the call ends. Return the reason of its end."""
        reading = asyncio.ensure_future(self._read(call))
        writing = asyncio.ensure_future(self._write(call))
        try:
            await asyncio.wait({reading, writing}, return_when=asyncio.FIRST_COMPLETED)
            self.open = False
            if not reading.done():
                await asyncio.wait({reading}, timeout=_LAST_WORDS_SECONDS)
            return await (reading if reading.done() else writing)
        finally:
            # Do not wait: a call with a closed channel may never end.
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
            return f"the transfer's stream broke: {error.code().name}: {error.details()}"
        return _CLOSED

    def _heard(self, message: pb.SenderMessage) -> None:
        transfer = self._transfers.get(message.room)
        if transfer is None:
            # The message was sent before the sender knew of the room's end.
            return
        if message.WhichOneof("message") != "closed":
            transfer.hear(message)
            return
        del self._transfers[message.room]
        why = peer_values.text(message.closed.reason)
        transfer.stream_broke(f"{_CLOSED}: {why}" if why else _CLOSED)

    async def _write(self, call: Call) -> str:
        connection = self._connection
        while messages := await self._outbox.take():
            batch = pb.ReceiverBatch(connection_id=connection, messages=messages)
            connection = ""
            try:
                # write() never returns by itself if the channel closes before the call's metadata
                # is sent.
                await asyncio.wait_for(call.write(batch), self._write_seconds)
            except TimeoutError:
                return f"the prefill node took no message for {self._write_seconds} s"
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
                return f"the transfer's stream broke: {error!r}"
            for message in messages:
                self._reached(message)
        raise AssertionError("the outbox is never closed")

    def _reached(self, message: pb.ReceiverMessage) -> None:
        """Reach the failpoint behind a sent message of this kind. A failure there ends only the
        message's room."""
        kind = message.WhichOneof("message")
        if kind not in _AFTER_SAYING:
            return
        try:
            reach(_AFTER_SAYING[kind])
        except Exception as error:
            log.exception("transfer %d broke", message.room)
            transfer = self._transfers.get(message.room)
            if transfer is not None:
                self.leave(transfer)
                transfer.stream_broke(f"the transfer's stream could not be used: {error!r}")


def _retrieved(task: "asyncio.Future[str]") -> None:
    """Retrieve the task's exception, because the stream's end has reported it already."""
    if not task.cancelled():
        task.exception()


class PrefillNodeLoad(NodeLoad):
    """Load of a connected prefill node: its latest report, and the work sent to it since.

    Thread rule: the event loop. Invariants: a node's reported values are finite and bounded before
    use. A report counts from `sent_by`: all work sent earlier had then reached the node. So no work
    is left out of both. Times are this node's monotonic seconds.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seconds: PrefillSeconds | None = None
        """Cost of a prefill on the node; None until it was reported."""
        self.pull: tuple[float, float] | None = None
        """Seconds of any pull and of each of its tokens; None if unknown."""
        self.reported_wait: float | None = None
        """Seconds of prefill waiting on the node, from the latest report; None until there is one.
        From any thread."""
        self._others, self._others_at = 0.0, 0.0
        self._as_of = -math.inf

    def take(self, load: pb.Load, sent_by: float, now: float) -> None:
        """Take a report. sent_by: all work sent before this time had reached the node. Raises
        PeerInvalid, and then keeps the previous values."""
        wait = peer_values.seconds(load.wait_seconds, "load.wait_seconds")
        seconds = PrefillSeconds(
            peer_values.seconds(load.fixed_seconds, "load.fixed_seconds"),
            peer_values.seconds(load.token_seconds, "load.token_seconds"),
            peer_values.seconds(load.context_seconds, "load.context_seconds"),
        )
        pull = None
        if load.HasField("pull_fixed_seconds") and load.HasField("pull_token_seconds"):
            pull = (
                peer_values.seconds(load.pull_fixed_seconds, "load.pull_fixed_seconds"),
                peer_values.seconds(load.pull_token_seconds, "load.pull_token_seconds"),
            )
        stored = peer_values.seconds(load.stored_seconds, "load.stored_seconds")
        others = peer_values.seconds(load.others_wait_seconds, "load.others_wait_seconds")
        self.seconds, self.pull, self._others = seconds, pull, others
        self._others_at = sent_by
        self._report(wait, sent_by, now, stored)

    def answered(self, wait: float, sent_at: float, now: float) -> None:
        """Record an answer: a room sent at `sent_at` found `wait` seconds of prefill before it."""
        self._report(wait, math.nextafter(sent_at, -math.inf), now)

    def others_wait(self, now: float) -> float:
        """Return the least part of wait() due to other decode nodes, from the latest report."""
        return max(0.0, self._others - (now - self._others_at))

    def _report(self, wait: float, sent_by: float, now: float, stored: float | None = None) -> None:
        if sent_by > self._as_of:
            self._as_of, self.reported_wait = sent_by, wait
            # The wait is reported as of now, so it is not counted down for the time since
            # `sent_by`.
            self.report(wait + now - sent_by, sent_by, stored)


class PrefillConnection:
    """One life of the link: from Connect until the heartbeat ends."""

    def __init__(
        self,
        connected: pb.Connected,
        stub: handover_pb2_grpc.HandoverStub,
        transport: Transport,
        write_seconds: float,
    ) -> None:
        """write_seconds: see TransferStream. Raises PeerInvalid, MetadataUnusable."""
        self.id = peer_values.name(connected.connection_id, "connection_id")
        self.node: NodeIdentity = node_from_wire(connected.node)
        self.stub = stub
        self.lost = asyncio.Event()
        self.progress: NodeProgress | None = None
        """Progress from the latest heartbeat with one."""
        self.load = PrefillNodeLoad()
        self.hints = HintTrust()
        self.gives_from = 0.0
        """Nothing is fetched from the node before this time, in monotonic seconds."""
        self.leaves = False
        """Its node ends: it takes no rooms except fetches."""
        self.number: int | None = None
        """Number of the node in the index of held prefixes, while it is followed."""
        self.writer = WriterLife(
            self.node.process,
            lease_from_wire(connected.lease_seconds),
            transport.retry_seconds,
            transport.settle_seconds,
        )
        """The prefill node as the writer of handed-over bytes."""
        self.arrived = 0
        """Layer chunks arrived in all its rooms, as counted at their looks."""
        self._drained: list[pb.DrainedPull] = []
        self._write_seconds = write_seconds
        self._transfers = self._new_stream()

    def _new_stream(self) -> TransferStream:
        return TransferStream(self.id, lambda: self.stub.Transfer(), self._write_seconds)

    def stream(self) -> TransferStream:
        """Return a stream open to new rooms. REQUIRES: alive."""
        if not self._transfers.open:
            self._transfers = self._new_stream()
        return self._transfers

    @property
    def alive(self) -> bool:
        return not self.lost.is_set()

    def end(self) -> None:
        """End the connection: no more heartbeats are answered and no room gets messages.
        Idempotent."""
        self.lost.set()
        self.writer.lose()
        self._transfers.end(f"prefill node {self.node.name} is lost")

    def drained(self, transfer_id: int, generation: int, drain: Drain) -> None:
        """Record the end of a pull sent by this node; the next renewal reports it."""
        self._drained.append(
            pb.DrainedPull(room=transfer_id, generation=generation, drain=drain_to_wire(drain))
        )

    def renewal(self, sequence: int, progress: NodeProgress) -> pb.Renewal:
        """Return a renewal with the pulls drained since the last one. progress: this node's."""
        drained, self._drained = self._drained, []
        return pb.Renewal(
            connection_id=self.id,
            sequence=sequence,
            drained=drained,
            progress=progress_to_wire(progress),
        )
