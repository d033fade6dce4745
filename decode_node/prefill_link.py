"""The link to one prefill node: connect with the contract, answer its beats, notice its end, come
again.

Owns the channel and the connection that lives now. Knows no rooms. Thread rule: the hand-over's
event loop; status() may be called from any thread.
Both sides may write to the other one: a beat asks for the prefill node's lease and is answered by a
renewal, a renewal asks for ours and is answered by the beat that confirms it.
Invariants: a beat is answered only on a connection that is alive, and after lost() none ever is, so
the sender's lease runs out; a connection that broke is never used again, a new one has a new name.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TypeAlias

import grpc

from tasuki.proto import handover_pb2 as pb
from tasuki.proto import handover_pb2_grpc
from tasuki.routing.prefix_hints import HintTrust
from tasuki.transfer import peer_values
from tasuki.transfer.errors import PeerInvalid, PeerSilent, TransferError
from tasuki.transfer.fencing.writer_liveness import WriterLife
from tasuki.transfer.liveness.link_status import PrefillNodeState, PrefillNodeStatus
from tasuki.transfer.liveness.node_progress import (
    NodeProgress,
    progress_from_wire,
    progress_to_wire,
)
from tasuki.transfer.liveness.silence import Silence, unless_silent
from tasuki.transfer.node_identity import NodeIdentity
from tasuki.transfer.protocol.contract import Contract, ContractMismatch, Difference
from tasuki.transfer.protocol.messages import (
    drain_from_wire,
    drain_to_wire,
    lease_from_wire,
    node_from_wire,
    node_to_wire,
)
from tasuki.transfer.reports import Drain
from tasuki.transfer.sending.sender import Sender, connect_within, disconnected_within
from tasuki.transfer.transports.base import Transport

from .dialling import Dialling
from .handover_settings import HandoverSettings
from .prefill_load import PrefillNodeLoad
from .room_stream import RoomStream

log = logging.getLogger(__name__)

_MOST_UNHEARD = 256
"""Renewals that a prefill node may leave unconfirmed; each is kept until it is confirmed."""


class PrefillConnection:
    """One life of the link: from Connect until the heartbeat ends."""

    def __init__(
        self,
        connected: pb.Connected,
        stub: handover_pb2_grpc.HandoverStub,
        transport: Transport,
        write_seconds: float,
    ) -> None:
        """write_seconds: as RoomStream. Raises PeerInvalid, MetadataUnusable."""
        self.id = peer_values.name(connected.connection_id, "connection_id")
        self.node: NodeIdentity = node_from_wire(connected.node)
        self.stub = stub
        self.lost = asyncio.Event()
        self.progress: NodeProgress | None = None
        """From the last beat that had one."""
        self.load = PrefillNodeLoad()
        self.hints = HintTrust()
        self.gives_from = 0.0
        """Nothing is fetched from it before that time, in monotonic seconds."""
        self.leaves = False
        """Its node ends: it takes no rooms but fetches."""
        self.number: int | None = None
        """In the index of who holds what, while it is followed."""
        self.writer = WriterLife(
            self.node.process,
            lease_from_wire(connected.lease_seconds),
            transport.retry_seconds,
            transport.settle_seconds,
        )
        """The prefill node, which writes what it hands over."""
        self.landed = 0
        """Windows of all its rooms, as these see it when they look."""
        self._drained: list[pb.DrainedPull] = []
        self._write_seconds = write_seconds
        self._rooms = self._new_stream()

    def _new_stream(self) -> RoomStream:
        return RoomStream(self.id, lambda: self.stub.Transfer(), self._write_seconds)

    def stream(self) -> RoomStream:
        """That rooms may join. REQUIRES: alive."""
        if not self._rooms.open:
            self._rooms = self._new_stream()
        return self._rooms

    @property
    def alive(self) -> bool:
        return not self.lost.is_set()

    def end(self) -> None:
        """No beat is answered any more, and no room is heard. Idempotent."""
        self.lost.set()
        self.writer.lose()
        self._rooms.end(f"prefill node {self.node.name} is lost")

    def drained(self, room: int, generation: int, drain: Drain) -> None:
        """A pull that this node sent has ended: the next renewal says so."""
        self._drained.append(
            pb.DrainedPull(room=room, generation=generation, drain=drain_to_wire(drain))
        )

    def renewal(self, sequence: int, progress: NodeProgress) -> pb.Renewal:
        """What has drained since the last one goes with it. progress: this node's."""
        drained, self._drained = self._drained, []
        return pb.Renewal(
            connection_id=self.id,
            sequence=sequence,
            drained=drained,
            progress=progress_to_wire(progress),
        )


Standing: TypeAlias = Callable[["PrefillLink", PrefillConnection], AbstractContextManager[None]]

Leaves: TypeAlias = Callable[["PrefillLink", PrefillConnection], None]


class PrefillLink:
    def __init__(
        self,
        target: str,
        contract: Contract,
        node: NodeIdentity,
        transport: Transport,
        settings: HandoverSettings,
        sender: Sender,
        on_change: Callable[[], None],
        dialling: Dialling | None = None,
        progress: Callable[[], NodeProgress] = NodeProgress,
        standing: Standing = lambda *_: nullcontext(),
        on_load: Callable[[], None] = lambda: None,
        on_leaves: Leaves = lambda *_: None,
    ) -> None:
        """sender: writes what the prefill node pulls, over the transport. on_change: the connection
        came or went. dialling: in plain text, and on this host only, by default. progress: this
        node's, sent with each renewal. standing: entered as long as a connection lives.
        on_load: the node reported its load. on_leaves: it said, once, that it ends and leaves
        states."""
        self.target = target
        self.connection: PrefillConnection | None = None
        self.refused: tuple[Difference, ...] = ()
        """Why the last attempt was refused; empty where it was not."""
        self.tried = asyncio.Event()
        """The first attempt to connect is over, one way or the other."""
        self._latest: PrefillConnection | None = None
        """The last one there was, living or not."""
        self._contract = contract
        self._node = node
        self._transport = transport
        self._settings = settings
        self._sender = sender
        self._on_change = on_change
        self._on_load = on_load
        self._on_leaves = on_leaves
        self._dialling = dialling or Dialling()
        self._progress = progress
        self._standing = standing

    @property
    def takes_rooms(self) -> bool:
        """Whether it is connected to a node that does not end."""
        connection = self.connection
        return connection is not None and connection.alive and not connection.leaves

    @property
    def leaves(self) -> bool:
        """Whether it is connected to one that does."""
        return self.connection is not None and self.connection.leaves

    def status(self) -> PrefillNodeStatus:
        # Each read once: the link's loop may change them meanwhile.
        connection, latest, refused = self.connection, self._latest, self.refused
        name = None if latest is None else latest.node.name
        if connection is not None and connection.alive:
            state, progress = PrefillNodeState.CONNECTED, connection.progress
            return PrefillNodeStatus(self.target, name, state, refused, progress)
        state = PrefillNodeState.REFUSED if refused else PrefillNodeState.LOST
        return PrefillNodeStatus(self.target, name, state, refused)

    async def run(self) -> None:
        """Connect, beat, and again, until cancelled. A target that must not be dialled is reported
        once, and stays refused."""
        refusal = self._dialling.refusal(self.target)
        if refusal is not None:
            self.refused = (refusal,)
            log.warning("prefill node %s, %s is %s", refusal.theirs, refusal.field, refusal.ours)
            self.tried.set()
            return
        pause = self._settings.retry_first
        while True:
            async with self._dialling.channel(self.target) as channel:
                stub = handover_pb2_grpc.HandoverStub(channel)  # type: ignore[no-untyped-call]
                try:
                    connection = await self._connect(stub)
                except (grpc.aio.AioRpcError, TransferError) as error:
                    self._explain(error)
                    self.tried.set()
                except Exception:
                    # What a peer says must not end the link's task, which nobody waits for.
                    log.exception("prefill node %s could not be connected", self.target)
                    self.tried.set()
                else:
                    pause = self._settings.retry_first
                    await self._live(connection)
            await asyncio.sleep(pause)
            if self._latest is not None:
                await disconnected_within(self._settings.silence, self._sender, [self._latest.id])
            pause = min(2 * pause, self._settings.retry_last)

    async def _connect(self, stub: handover_pb2_grpc.HandoverStub) -> PrefillConnection:
        """Raises ContractMismatch, AioRpcError, TransportError."""
        asked_at = time.monotonic()
        answer: pb.ConnectResponse = await stub.Connect(
            pb.ConnectRequest(
                node=node_to_wire(self._node),
                contract=self._contract.flat(),
                lease_seconds=self._sender.settings.lease_seconds,
            ),
            timeout=self._settings.connect,
        )
        if answer.WhichOneof("result") != "connected":
            self.refused = tuple(
                # The refusing side's values are theirs to us.
                Difference(
                    peer_values.shown(d.field),
                    ours=peer_values.shown(d.theirs),
                    theirs=peer_values.shown(d.ours),
                )
                for d in answer.refused.differences[: peer_values.MOST_FIELDS]
            )
            raise ContractMismatch(self.refused)
        self.refused = ()
        connection = PrefillConnection(
            answer.connected, stub, self._transport, self._settings.write
        )
        await connect_within(
            self._settings.connect, self._sender, connection.id, connection.node, asked_at
        )
        return connection

    def _explain(self, error: Exception) -> None:
        if isinstance(error, grpc.aio.AioRpcError):
            self.refused = ()
            log.debug("prefill node %s: %s %s", self.target, error.code(), error.details())
        else:
            log.warning("prefill node %s: %s", self.target, error)

    async def _live(self, connection: PrefillConnection) -> None:
        self._latest = self.connection = connection
        log.info("prefill node %s (%s) is connected", connection.node.name, self.target)
        beating = asyncio.create_task(self._beat(connection))
        dropping = asyncio.create_task(connection.lost.wait())
        try:
            with self._standing(self, connection):
                self._on_change()
                self.tried.set()
                await asyncio.wait({beating, dropping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            beating.cancel()
            dropping.cancel()
            connection.end()
            self.connection = None
            self._sender.disconnect(connection.id)
            log.info("prefill node %s (%s) is lost", connection.node.name, self.target)
            self._on_change()

    async def _beat(self, connection: PrefillConnection) -> None:
        """Answer beats until they stop."""
        call = connection.stub.Heartbeat()
        asked = {0: time.monotonic()}
        silence = Silence(self._settings.silence, time.monotonic())
        try:
            await unless_silent(call.write(connection.renewal(0, self._progress())), silence)
            while connection.alive:
                beat = await unless_silent(call.read(), silence)
                if not isinstance(beat, pb.Beat):
                    return
                silence.received(time.monotonic())
                if beat.HasField("progress"):
                    connection.progress = progress_from_wire(beat.progress)
                asked_at = asked.get(beat.received)
                if asked_at is not None:
                    self._sender.renew(connection.id, asked_at)
                if beat.HasField("load"):
                    self._take_load(connection, beat.load, asked_at)
                if beat.leaves and not connection.leaves:
                    connection.leaves = True
                    self._on_leaves(self, connection)
                asked = {s: at for s, at in asked.items() if s >= beat.received}
                if len(asked) > _MOST_UNHEARD:
                    log.warning("prefill node %s beats and confirms nothing", self.target)
                    return
                asked[beat.sequence] = time.monotonic()
                connection.writer.answering()
                renewal = connection.renewal(beat.sequence, self._progress())
                await unless_silent(call.write(renewal), silence)
        except PeerSilent as error:
            log.warning("prefill node %s: %s", self.target, error)
        except grpc.aio.AioRpcError as error:
            log.info("prefill node %s: %s %s", self.target, error.code(), error.details())
        except asyncio.InvalidStateError as error:
            log.debug("heartbeat of %s: %r", self.target, error)
        except Exception:
            log.exception("the heartbeat of %s broke", self.target)
        finally:
            call.cancel()

    def _take_load(
        self, connection: PrefillConnection, load: pb.Load, asked_at: float | None
    ) -> None:
        now = time.monotonic()
        try:
            connection.load.report(load, now if asked_at is None else asked_at, now)
        except PeerInvalid as error:
            log.debug("prefill node %s: %s", self.target, error)
        else:
            self._on_load()

    async def abort(
        self, connection: PrefillConnection, room: int, generation: int, timeout: float
    ) -> Drain | None:
        """The unary abort of a room of `connection`; None where no answer came in time.

        Goes over the connection that lives now: another process at the address refuses to answer
        for it.
        """
        now = self.connection
        if now is None:
            return None
        request = pb.AbortRequest(room=room, generation=generation, connection_id=connection.id)
        try:
            answer: pb.AbortResponse = await now.stub.Abort(request, timeout=timeout)
        except (grpc.aio.AioRpcError, grpc.aio.UsageError) as error:
            # A channel that was closed meanwhile raises the second.
            log.debug("abort of room %d at %s: %r", room, self.target, error)
            return None
        return drain_from_wire(answer.drain)
