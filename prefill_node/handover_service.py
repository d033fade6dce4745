"""Handover service of a prefill node: streams and calls turned into connections and transfers.

Owns live transfers and pulls, and remembers through `ended_transfers` how the last ones ended.
Turns streams into engine messages and back; decides nothing about caches or bytes.

Thread rule: the hand-over's event loop; deliver() and peers() may be called from any thread.

Invariants: a reply to Abort comes after the drain. An Abort is answered only for transfers of the
connection named in it; no other peer can guess the name. Every wait for a receiver has a deadline.
Every PullWanted is answered, immediately if its transfer or its decode node is gone.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

import grpc

from tasuki.engine import messages as m
from tasuki.engine.messages import transfer_proto as wire
from tasuki.engine.messages.picture_wire import runs_from_wire
from tasuki.prefill_node.arriving_pictures import MediaBudget
from tasuki.prefill_node.decode_connections import (
    ReceiverConnections,
    ReceiverStream,
    TransferRefused,
)
from tasuki.prefill_node.gateway_transfers import GatewayTransfers
from tasuki.prefill_node.leaving_desk import LeavingDesk
from tasuki.prefill_node.transfers import OutgoingTransfer, PullMeans, PullReceiver, Speak
from tasuki.prefill_node.usable_feed import UsableFeed
from tasuki.proto import handover_pb2 as pb
from tasuki.proto import handover_pb2_grpc
from tasuki.pycache.keys import has_pictures
from tasuki.pycache.weights_namespace import START, WeightsNamespace
from tasuki.transfer import peer_values
from tasuki.transfer.control.driven_transfer import LiveTransfers
from tasuki.transfer.control.link_status import NodeProgress
from tasuki.transfer.control.writer_life import ConnectionBreaker, WriterLife, unless_timed_out
from tasuki.transfer.errors import DuplicateTransfer, PeerInvalid, PeerTimedOut, TransferError
from tasuki.transfer.lifecycle import events as on
from tasuki.transfer.lifecycle import messages as say
from tasuki.transfer.lifecycle.deadlines import PullReceiverDeadlines, SenderDeadlines
from tasuki.transfer.lifecycle.ended_transfers import EndedTransfers
from tasuki.transfer.node_identity import NodeIdentity
from tasuki.transfer.protocol.contract import Contract, diff, pictures_pair
from tasuki.transfer.protocol.messages import (
    drain_from_wire,
    drain_to_wire,
    lease_from_wire,
    node_from_wire,
    node_to_wire,
)
from tasuki.transfer.receiving.receiver import Receiver
from tasuki.transfer.reports import Drain
from tasuki.transfer.sending.sender import Sender
from tasuki.transfer.transports.base import Transport

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class HandoverServiceSettings:
    """Times of the Handover service, in seconds.

    heartbeat_seconds: time between two heartbeats. timeout_seconds: heartbeat timeout of a
    receiver. progress_seconds: time between two repetitions of Queued. patience_seconds: limit for
    a lost pull to be fenced; beyond it the connection is given up, so its writer's lease runs out.
    deadlines, pull: longest time without progress in each state, of transfers and of pulls.
    write_seconds: limit for the receiver to take one batch of messages, and for a stream's first
    message. stop_seconds: limit for transfers to drain when the node stops; longer than their
    draining deadline.
    """

    heartbeat_seconds: float = 0.2
    timeout_seconds: float = 3.0
    progress_seconds: float = 1.0
    patience_seconds: float = 10.0
    deadlines: SenderDeadlines = field(default_factory=SenderDeadlines)
    pull: PullReceiverDeadlines = field(default_factory=PullReceiverDeadlines)
    write_seconds: float = 10.0
    stop_seconds: float = 15.0


Message = TypeVar("Message")
BeginTransfer = Callable[[m.TransferId, str, str], None]


def _unknown(transfer_id: m.TransferId, request: str, traceparent: str) -> None:
    return None


def _is_asked(transfer: OutgoingTransfer, first: pb.PicturePiece) -> bool:
    """Return True if the piece begins the call that the transfer waits for."""
    named = transfer.connection, transfer.generation
    return named == (first.connection_id, first.generation) and transfer.begin_pictures()


class HandoverService(handover_pb2_grpc.HandoverServicer):
    """Handover service of a prefill node over gRPC, for decode nodes. Implements ConnectionOwner
    too."""

    def __init__(
        self,
        post: m.Post,
        sender: Sender,
        receiver: Receiver,
        transport: Transport,
        contract: Contract,
        node: NodeIdentity,
        loop: asyncio.AbstractEventLoop,
        settings: HandoverServiceSettings | None = None,
        begin_transfer: BeginTransfer = _unknown,
        gateway_transfers: GatewayTransfers | None = None,
        progress: Callable[[], NodeProgress] = NodeProgress,
    ) -> None:
        """post: sends a message to the engine. loop: the hand-over's event loop. begin_transfer:
        called with each hand-over's transfer id, request id and traceparent. gateway_transfers:
        transfers announced by a gateway; None: no gateway. progress: returns this node's
        progress."""
        self._begin_transfer = begin_transfer
        self._post = post
        self._gateway_transfers = gateway_transfers
        self._sender = sender
        self._contract = contract.flat()
        self._pictures = dict(contract.pictures)
        self._weights = START
        self._changing: asyncio.Task[None] | None = None
        """The latest change of the node's weights."""
        self._media = MediaBudget()
        self._node = node
        self._loop = loop
        self._settings = settings or HandoverServiceSettings()
        self._connections = ReceiverConnections(
            node.epoch,
            sender,
            self._settings.heartbeat_seconds,
            self._settings.timeout_seconds,
            transport,
            self,
        )
        self.progress = progress
        self._load: m.PrefillLoad | None = None
        """Latest load reported by the engine."""
        self._usable = UsableFeed(lambda: post(m.ReadUsable()))
        self._usable_readers: set[str] = set()
        """Connections of decode nodes reading the usable prefixes; each reads one stream."""
        self._desk = LeavingDesk(post, lambda: self._connections.names)
        breaker = ConnectionBreaker(transport, receiver, self._lose_all)
        self._shared = PullMeans(
            receiver, breaker, self._settings.pull, self._settings.patience_seconds
        )
        self._pulls: LiveTransfers[tuple[int, int], PullReceiver] = LiveTransfers(self._pull_over)
        """Live pulls by transfer id and generation. A pull may outlive its hand-over."""
        self._transfers: LiveTransfers[int, OutgoingTransfer] = LiveTransfers(self._over)
        self._streams: set[ReceiverStream] = set()
        self._ended = EndedTransfers(self._connections.__contains__)

    @property
    def leaves(self) -> bool:
        return self._desk.leaves

    @property
    def receivers(self) -> list[str]:
        """Return the names of the connected decode nodes."""
        return self._connections.nodes

    def peers(self) -> dict[str, NodeProgress]:
        """Return the progress reported by connected decode nodes, by name. It may be called from
        any thread."""
        return self._connections.peers()

    def deliver(self, message: m.Outbox) -> None:
        """Handle a message of the engine; a message of an ended transfer is dropped. It may be
        called from any thread."""
        self._loop.call_soon_threadsafe(self._dispatch, message)

    def _dispatch(self, message: m.Outbox) -> None:
        match message:
            case m.PrefillQueue(transfers):
                for position, number in enumerate(transfers):
                    if (waiting := self._transfers.get(number)) is not None:
                        waiting.put(on.Moved(position))
            case m.PrefillLoad():
                self._load = message
            case m.UsableRead(batch):
                self._usable.take(batch)
            case m.LeavingBegun():
                self._desk.begin()
            case m.WeightsChanged():
                self._changing = self._loop.create_task(self._change(message))
            case m.LeftState():
                self._desk.answered(message)
            case (
                m.PrefillQueued()
                | m.PrefillAccepted()
                | m.PrefillRefused()
                | m.PrefillToken()
                | m.FetchRefused()
                | m.StateHeld()
                | m.PicturesWanted()
            ):
                # Handle the token before its room, because the room may be over with the token.
                if isinstance(message, m.PrefillToken) and self._gateway_transfers is not None:
                    self._gateway_transfers.first_token(message.transfer_id, message)
                transfer = self._transfers.get(message.transfer_id)
                if transfer is not None:
                    transfer.hear_engine(message)
            case m.PullWanted(grant=grant):
                transfer = self._transfers.get(grant.transfer_id)
                if transfer is not None:
                    transfer.hear_engine(message)
                else:
                    self._refuse_pull(grant.transfer_id)

    async def _change(self, message: m.WeightsChanged) -> None:
        """Show other weights to decode nodes from now on, and end their connections: they connect
        again, and are refused until they have the same weights."""
        digests = {"weights_digest": message.files, "tensors_digest": message.tensors}
        self._contract |= digests
        if self._pictures:
            self._pictures["tower_digest"] = message.files
        self._weights = WeightsNamespace(message.names)
        await self.stop("the prefill node has other weights now: connect again")
        self._post(m.LinksClosed())

    async def stop(self, reason: str = "the prefill node shuts down") -> None:
        """Give up every transfer, wait until all have drained, and forget the connections. reason:
        text for the peers."""
        for transfer in self._transfers:
            transfer.put(on.Stopped(reason))
        await self._transfers.end(self._settings.stop_seconds)
        for pull in self._pulls:
            pull.put(on.Stopped("the prefill node shuts down"))
        await self._pulls.end(self._settings.patience_seconds)
        self._connections.drop_all()

    # Connections

    async def Connect(
        self,
        request: pb.ConnectRequest,
        context: "grpc.aio.ServicerContext[pb.ConnectRequest, pb.ConnectResponse]",
    ) -> pb.ConnectResponse:
        ours = {**self._contract, "transport": self._node.transport}
        try:
            theirs = peer_values.contract({**request.contract, "transport": request.node.transport})
        except TransferError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        differences = diff(ours, theirs)
        if differences:
            peer = peer_values.shown(request.node.name)
            log.warning("refused %s: %s", peer, [d.field for d in differences])
            return pb.ConnectResponse(
                refused=pb.Refusal(differences=[pb.Difference(**vars(d)) for d in differences])
            )
        try:
            node = node_from_wire(request.node)
            lease_seconds = lease_from_wire(request.lease_seconds)
            theirs = peer_values.contract(request.pictures)
            seeing = pictures_pair(self._pictures, theirs)
            name = await self._connections.add(node, lease_seconds, sees_pictures=seeing)
            self._ended.began(name)
        except TransferError as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"transport: {error}")
            raise AssertionError("abort raises") from error
        return pb.ConnectResponse(
            connected=pb.Connected(
                node=node_to_wire(self._node),
                connection_id=name,
                lease_seconds=self._sender.settings.lease_seconds,
                pictures=self._pictures,
                weights=self._weights.prefix,
            )
        )

    async def Heartbeat(
        self,
        request_iterator: AsyncIterator[pb.Renewal],
        context: "grpc.aio.ServicerContext[pb.Renewal, pb.Beat]",
    ) -> None:
        await context.send_initial_metadata(())
        first = await self._first(request_iterator)
        if first is None or not self._connections.may_send_heartbeat(first.connection_id):
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                "connection_id: unknown or in use; Connect first",
            )
        assert first is not None
        heartbeat_timeout = self._connections.heartbeat_timeout(first.connection_id)
        heartbeats = self._connections.heartbeats(first.connection_id, request_iterator)
        try:
            async with contextlib.aclosing(heartbeats):
                async for heartbeat in heartbeats:
                    # A receiver that reads nothing counts as timed out, as one that sends nothing
                    # does.
                    await unless_timed_out(context.write(heartbeat), heartbeat_timeout)
        except PeerTimedOut as error:
            log.warning("connection %s: %s", first.connection_id, error)
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, str(error))

    def load(self, connection: str) -> pb.Load | None:
        return None if self._load is None else wire.load(self._load, connection)

    async def Usable(
        self,
        request: pb.UsableRequest,
        context: "grpc.aio.ServicerContext[pb.UsableRequest, pb.UsableBatch]",
    ) -> None:
        await context.send_initial_metadata(())
        name = request.connection_id
        if name not in self._connections or name in self._usable_readers:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                "connection_id: unknown, or read already; Connect first",
            )
        self._usable_readers.add(name)
        batches = self._usable.batches(lambda: name in self._connections)
        try:
            async with contextlib.aclosing(batches):
                async for batch in batches:
                    await asyncio.wait_for(context.write(batch), self._settings.write_seconds)
        except TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "no batch was read for too long")
        finally:
            self._usable_readers.discard(name)

    async def TakeOver(
        self,
        request: pb.TakeOverRequest,
        context: "grpc.aio.ServicerContext[pb.TakeOverRequest, pb.TakeOverResponse]",
    ) -> pb.TakeOverResponse:
        if request.connection_id not in self._connections:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION, "connection_id is unknown; Connect first"
            )
        try:
            return await self._desk.take_over(request)
        except PeerInvalid as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            raise AssertionError("abort raises") from error

    async def _first(self, messages: AsyncIterator[Message]) -> Message | None:
        """Return the first message of a stream; None if the stream ends or sends nothing within
        write_seconds."""
        try:
            return await asyncio.wait_for(anext(messages, None), self._settings.write_seconds)
        except TimeoutError:
            return None

    def connection_lost(self, name: str) -> None:
        for transfer in self._transfers:
            if transfer.connection == name:
                transfer.put(on.ReceiverLost())
        for stream in list(self._streams):
            if stream.connection == name:
                stream.lose()

    def _lose_all(self) -> list[WriterLife]:
        self._connections.drop_all()
        return [pull.writer for pull in self._pulls]

    # Rooms

    async def Transfer(
        self,
        request_iterator: AsyncIterator[pb.ReceiverBatch],
        context: "grpc.aio.ServicerContext[pb.ReceiverBatch, pb.SenderBatch]",
    ) -> None:
        await context.send_initial_metadata(())
        first = await self._first(request_iterator)
        if first is None or first.connection_id not in self._connections:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION, "connection_id is unknown; Connect first"
            )
        assert first is not None
        write_seconds = self._settings.write_seconds
        stream = ReceiverStream(first.connection_id, self._open, write_seconds)
        self._streams.add(stream)
        try:
            await stream.run(first, request_iterator, context.write)
        finally:
            self._streams.discard(stream)

    def _open(self, connection: str, message: pb.ReceiverMessage, speak: Speak) -> OutgoingTransfer:
        """Begin and return the transfer asked for by a Reserve or a Fetch message. speak: sends a
        message to the receiver. Raises TransferRefused."""
        number, wanted = message.room, message.reserve
        reserve: m.PrefillReserve | m.FetchReserve
        try:
            if message.HasField("fetch"):
                reserve = wire.fetch_from_wire(number, message.fetch, connection)
            else:
                asked = wire.reserve_from_wire(wanted, connection)
                reserve = replace(asked, pictures=runs_from_wire(wanted.pictures))
        except wire.InvalidReserve as error:
            raise TransferRefused(f"{message.WhichOneof('message')}: {error}") from error
        transfer_request = reserve.transfer_request
        if number != transfer_request.transfer_id:
            raise TransferRefused(
                f"transfer {number} is not its transfer request's, {transfer_request.transfer_id}"
            )
        if has_pictures(reserve.prompt) and not self._connections.sees_pictures(connection):
            raise TransferRefused("its pictures are not computed here as there: compare towers")
        is_open = self._transfers.get(transfer_request.transfer_id) is not None
        refusal = self._ended.refusal(
            connection, transfer_request.transfer_id, transfer_request.generation, is_open
        )
        if refusal is not None:
            raise TransferRefused(refusal)
        awaits_gateway = wanted.by_gateway
        if awaits_gateway and self._gateway_transfers is None:
            raise TransferRefused("reserve.by_gateway: no gateway calls this node; give --gateway")
        if awaits_gateway and wanted.pictures:
            raise TransferRefused("reserve.pictures: a gateway's transfer has no pictures")
        request_id, traceparent = wire.trail_from_wire(wanted)
        transfer = OutgoingTransfer(
            reserve,
            connection,
            self._post,
            self._sender,
            self._settings.progress_seconds,
            self._begin_pull,
            speak,
            request_id,
            deadlines=self._settings.deadlines,
            awaits_gateway=awaits_gateway,
            media=self._media,
        )
        if awaits_gateway and self._gateway_transfers is not None:
            try:
                self._gateway_transfers.receiver_arrived(transfer)
            except DuplicateTransfer as error:
                raise TransferRefused(str(error)) from error
        if isinstance(reserve, m.PrefillReserve):
            self._begin_transfer(transfer_request.transfer_id, request_id, traceparent)
        # The room outlives its stream, because it must drain when the stream breaks.
        self._transfers.start(transfer_request.transfer_id, transfer)
        return transfer

    async def Pictures(
        self,
        request_iterator: AsyncIterator[pb.PicturePiece],
        context: "grpc.aio.ServicerContext[pb.PicturePiece, pb.PicturesTaken]",
    ) -> pb.PicturesTaken:
        first = await self._first(request_iterator)
        transfer = None if first is None else self._transfers.get(first.room)
        if first is None or transfer is None or not _is_asked(transfer, first):
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION, "no pictures are asked for in this transfer"
            )
        assert first is not None and transfer is not None
        try:
            await self._take_pieces(transfer, first, request_iterator)
        except PeerInvalid as error:
            transfer.put(on.Stopped(str(error)))
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except BaseException:
            # The call broke, or is cancelled: the rest of the pieces never comes.
            transfer.put(on.Stopped("the call with its pictures broke"))
            raise
        return pb.PicturesTaken()

    async def _take_pieces(
        self,
        transfer: OutgoingTransfer,
        first: pb.PicturePiece,
        others: AsyncIterator[pb.PicturePiece],
    ) -> None:
        """Take the pieces of one call. Raises PeerInvalid, also if the next one does not come."""
        piece: pb.PicturePiece | None = first
        seconds = self._settings.deadlines.awaiting_media
        while piece is not None:
            if transfer.take_piece(piece):
                return
            try:
                piece = await asyncio.wait_for(anext(others, None), seconds)
            except TimeoutError as error:
                raise PeerInvalid(f"no piece of a picture came for {seconds} s") from error
        raise PeerInvalid("the call with its pictures ended before the last piece")

    def _over(self, transfer: OutgoingTransfer, failure: Exception | None) -> None:
        if self._gateway_transfers is not None:
            self._gateway_transfers.over(transfer)
        transfer.close()
        drain = transfer.ended.result()
        self._ended.remember(transfer.connection, transfer.transfer_id, transfer.generation, drain)
        log.info("transfer over: %s", drain.name.lower(), extra=transfer.named)
        if drain is Drain.FORCED or transfer.endpoint_failed:
            # A stuck or broken endpoint stays so. The receiver connects anew, over a new endpoint.
            self._connections.drop(transfer.connection)

    async def Abort(
        self,
        request: pb.AbortRequest,
        context: "grpc.aio.ServicerContext[pb.AbortRequest, pb.AbortResponse]",
    ) -> pb.AbortResponse:
        connection, generation = request.connection_id, request.generation
        if not self._ended.knows(connection):
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                "connection_id is of another process, or of long ago: it cannot be answered for "
                "here",
            )
        transfer = self._transfers.get(request.room)
        if transfer is not None and (transfer.connection, transfer.generation) == (
            connection,
            generation,
        ):
            transfer.put(say.Abort())
            # An aborted room drains, or is given up at its deadline.
            drain = await asyncio.shield(transfer.ended)
        else:
            drain = self._ended.aborted(connection, request.room, generation)
        return pb.AbortResponse(drain=drain_to_wire(drain))

    # Pulls

    def _begin_pull(self, grant: m.PullGrant, connection: str, speak: Speak) -> PullReceiver | None:
        """Begin a pull from the hand-over's decode node. speak: sends on the hand-over's stream.
        Return None if the connection has ended."""
        writer = self._connections.writer(connection)
        if writer is None:
            self._refuse_pull(grant.transfer_id)
            return None
        give_up = partial(self._connections.drop, connection)
        pull = PullReceiver(grant, self._post, self._shared, writer, give_up, speak)
        self._pulls.start((grant.transfer_id, grant.generation), pull)
        return pull

    def _refuse_pull(self, transfer_id: m.TransferId) -> None:
        """Report a pull to the engine as lost and fenced, without asking a decode node."""
        self._post(m.PullLost(transfer_id))
        self._post(m.PullFenced(transfer_id))

    def _pull_over(self, pull: PullReceiver, failure: Exception | None) -> None:
        if failure is not None:
            # The engine drops a repeated loss.
            self._refuse_pull(pull.id)

    def pull_drained(self, drained: pb.DrainedPull) -> None:
        """Handle a pull's drain, reported in a receiver's renewal. The renewal may overtake the
        stream, so the pull still accepts messages on the stream. Nothing changes for an ended
        pull."""
        pull = self._pulls.get((drained.room, drained.generation))
        if pull is not None:
            pull.put(on.DrainAnswered(drain_from_wire(drained.drain)))
