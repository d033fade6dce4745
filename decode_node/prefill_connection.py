"""One connection to a prefill node: the facts known of the node, and the stream of its transfers.

A link has a new connection after each loss. Messages of transfers are sent in order, in batches.
Each incoming message is given to its transfer. Owns the streaming call, from the first transfer to
its end. Knows no state machine. Thread rule: the event loop.

Invariants: say() never waits, so a peer cannot delay a transfer's next event. The call may fail in
any way: its channel is closed before it was opened, a write never ends, or the peer does not read.
Each transfer on it is then notified exactly once, and gets no message after that.
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
from tasuki.pycache.keys import Keys, has_pictures
from tasuki.routing.node_load import NodeLoad, PrefillSeconds
from tasuki.routing.prefix_hints import HintTrust
from tasuki.transfer import peer_values
from tasuki.transfer.control.link_status import NodeProgress, progress_to_wire
from tasuki.transfer.control.outbox import MOST_MESSAGES, Outbox
from tasuki.transfer.control.writer_life import WriterLife
from tasuki.transfer.failpoints import Place, reach
from tasuki.transfer.node_identity import NodeIdentity
from tasuki.transfer.protocol.messages import (
    drain_to_wire,
    lease_from_wire,
    node_from_wire,
    weights_from_wire,
)
from tasuki.transfer.reports import Drain
from tasuki.transfer.transports.base import Transport

log = logging.getLogger(__name__)

Call: TypeAlias = "grpc.aio.StreamStreamCall[pb.ReceiverBatch, pb.SenderBatch]"

_AFTER_SAYING = MappingProxyType(
    {"reserve": Place.RECEIVER_AFTER_RESERVE, "grant": Place.RECEIVER_AFTER_GRANT}
)
_LAST_WORDS_SECONDS = 1.0
"""Seconds for reading on after a write failed: the peer's last messages may still be on their way,
with the reason."""
_CLOSED = "the prefill node closed the transfer"


class TransferOnStream(Protocol):
    """Interface of a transfer for the stream of its messages."""

    @property
    def transfer_id(self) -> int: ...
    def receive(self, message: pb.SenderMessage) -> None:
        """Take a message of the peer for this transfer."""

    def stream_broke(self, reason: str) -> None:
        """Handle the end of the stream, for this transfer: no more messages come."""


class TransferStream:
    def __init__(
        self, connection: str, open_call: Callable[[], Call], write_seconds: float
    ) -> None:
        """connection: id of the connection, given by the peer. open_call: opens the streaming call.
        write_seconds: limit for the peer to take one batch."""
        self.open = True
        """True while transfers may join the stream. It becomes False when the call ends, so the
        call's failure does not reach new transfers."""
        self._connection = connection
        self._open_call = open_call
        self._write_seconds = write_seconds
        self._transfers: dict[int, TransferOnStream] = {}
        """Transfers receiving messages, by id: from join() until they leave or the peer closes
        them."""
        self._outbox: Outbox[pb.ReceiverMessage] = Outbox()
        self._carrying: asyncio.Task[None] | None = None

    def join(self, transfer: TransferOnStream) -> None:
        """Add a transfer to the stream; the first one starts the stream's call. REQUIRES: `open` is
        True, and no transfer with its id is on the stream."""
        self._transfers[transfer.transfer_id] = transfer
        if self._carrying is None:
            self._carrying = asyncio.get_running_loop().create_task(self._run(), name="rooms")

    def say(self, transfer: TransferOnStream, message: pb.ReceiverMessage) -> None:
        """Send a transfer's message; drop it if the transfer is no longer on the stream."""
        if self._transfers.get(transfer.transfer_id) is transfer:
            message.room = transfer.transfer_id
            self._outbox.put(message)

    def leave(self, transfer: TransferOnStream) -> None:
        """Remove an ended transfer from the stream. Notify the peer, unless it closed the transfer
        first. Idempotent."""
        self.say(transfer, pb.ReceiverMessage(hang_up=pb.HangUp()))
        self.part(transfer)

    def part(self, transfer: TransferOnStream) -> None:
        """Remove a finished transfer from the stream without telling the peer: it closes the
        transfer by itself. Idempotent."""
        if self._transfers.get(transfer.transfer_id) is transfer:
            del self._transfers[transfer.transfer_id]

    def end(self, reason: str) -> None:
        """End the stream: notify all its transfers with the reason, and cancel the call.
        Idempotent."""
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
        """Carry the transfers' messages both ways until the gRPC call ends. Return the reason of
        its end."""
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
            transfer.receive(message)
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
        """Reach the failpoint after sending a message of this kind. An error there ends only the
        message's transfer."""
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
    """Retrieve the ended task's exception, so asyncio does not log it: the stream's end has
    reported it already."""
    if not task.cancelled():
        task.exception()


class PrefillNodeLoad(NodeLoad):
    """Load of a connected prefill node: its latest report, and the work sent to it since.

    Thread rule: the event loop. Invariants: a node's reported values are finite and bounded before
    use. A report counts from `sent_by`: all work sent before this time had then reached the node.
    So all work is in the report or counted after it. Times are this node's monotonic seconds.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seconds: PrefillSeconds | None = None
        """Seconds of a prefill on the node by its tokens; None until it was reported."""
        self.pull: tuple[float, float] | None = None
        """Cost of a pull on the node: (fixed seconds, seconds for each token); None if unknown."""
        self.reported_wait: float | None = None
        """Seconds of prefill waiting on the node, from the latest report; None before one. It may
        be read from any thread."""
        self._others, self._others_at = 0.0, 0.0
        self._as_of = -math.inf

    def take(self, load: pb.Load, sent_by: float, now: float) -> None:
        """Take the node's load report; pull times are None unless the report has both. sent_by: all
        work sent before this time had reached the node. Raises PeerInvalid, and then keeps the
        previous values."""
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
        """Record the node's answer to a prompt sent at time `sent_at`, unless a later report is
        known. `wait` seconds of prefill were before the prompt."""
        self._report(wait, math.nextafter(sent_at, -math.inf), now)

    def others_wait(self, now: float) -> float:
        """Return the least part of wait(), in seconds, caused by other decode nodes, from the
        latest report. now: monotonic seconds."""
        return max(0.0, self._others - (now - self._others_at))

    def _report(self, wait: float, sent_by: float, now: float, stored: float | None = None) -> None:
        if sent_by > self._as_of:
            self._as_of, self.reported_wait = sent_by, wait
            # The wait is reported as of now, so it is not counted down for the time since
            # `sent_by`.
            self.report(wait + now - sent_by, sent_by, stored)


class PrefillConnection:
    """One connection to a prefill node: from its Connect call until its heartbeats end."""

    def __init__(
        self,
        connected: pb.Connected,
        stub: handover_pb2_grpc.HandoverStub,
        transport: Transport,
        write_seconds: float,
        *,
        sees_pictures: bool = False,
    ) -> None:
        """connected: the node's answer to Connect. write_seconds: limit for the node to take one
        batch of messages. sees_pictures: True if it may compute prompts with pictures. Raises
        PeerInvalid, MetadataUnusable."""
        self.id = peer_values.name(connected.connection_id, "connection_id")
        self.node: NodeIdentity = node_from_wire(connected.node)
        self.stub = stub
        self.sees_pictures = sees_pictures
        self.weights = weights_from_wire(connected.weights)
        """Namespace of the node's weights, for the names of its prefixes."""
        self.lost = asyncio.Event()
        self.progress: NodeProgress | None = None
        """Progress of the node, from its latest heartbeat with a report of it; None before one."""
        self.load = PrefillNodeLoad()
        self.hints = HintTrust()
        self.gives_from = 0.0
        """Time in monotonic seconds before which no state is fetched from the node."""
        self.leaves = False
        """True once the node ends: it accepts no more transfers except fetches."""
        self.number: int | None = None
        """Number of the node in the index of held prefixes; None while the index does not contain
        it."""
        self.writer = WriterLife(
            self.node.process,
            lease_from_wire(connected.lease_seconds),
            transport.retry_seconds,
            transport.settle_seconds,
        )
        """Evidence about the prefill node as the writer of handed-over bytes: its lease and
        process."""
        self.arrived = 0
        """Number of layer chunks arrived in all transfers of this connection, as counted at their
        checks."""
        self._drained: list[pb.DrainedPull] = []
        self._write_seconds = write_seconds
        self._transfers = self._new_stream()

    def _new_stream(self) -> TransferStream:
        return TransferStream(self.id, lambda: self.stub.Transfer(), self._write_seconds)

    def stream(self) -> TransferStream:
        """Return a stream for new transfers; a new one if the last has ended. REQUIRES: the
        connection is alive."""
        if not self._transfers.open:
            self._transfers = self._new_stream()
        return self._transfers

    def takes(self, prompt: Keys) -> bool:
        """Return True if the node may compute or hold the prompt: it has no pictures, or both nodes
        see them equally."""
        return self.sees_pictures or not has_pictures(prompt)

    @property
    def alive(self) -> bool:
        return not self.lost.is_set()

    def end(self) -> None:
        """End the connection: no more heartbeats are answered and no transfer gets messages.
        Idempotent."""
        self.lost.set()
        self.writer.lose()
        self._transfers.end(f"prefill node {self.node.name} is lost")

    def drained(self, transfer_id: int, generation: int, drain: Drain) -> None:
        """Record the drain of a pull sent by this node; the next renewal reports it."""
        self._drained.append(
            pb.DrainedPull(room=transfer_id, generation=generation, drain=drain_to_wire(drain))
        )

    def renewal(self, sequence: int, progress: NodeProgress) -> pb.Renewal:
        """Return the renewal answering a heartbeat, with the pulls drained since the last one.
        sequence: number of the heartbeat. progress: this node's progress."""
        drained, self._drained = self._drained, []
        return pb.Renewal(
            connection_id=self.id,
            sequence=sequence,
            drained=drained,
            progress=progress_to_wire(progress),
        )
