"""One hand-over on the decode node: between the prefill node's stream, the engine and the receiver.

Owns what a hand-over adds to a receiving room (transfer/rooms/receiving_room.py): the stream, the
place in the sender's queue, the grant, the first token, and how a drain is asked for. Thread rule:
the event loop.
Invariants: every room that was granted ends in exactly one of RemoteDone, or HandoverFailed (not
where the engine cancelled) followed by WriterFenced.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from tasuki.engine import messages as m
from tasuki.proto import handover_pb2 as pb
from tasuki.transfer.errors import TransferError
from tasuki.transfer.failpoints import Place, reach
from tasuki.transfer.fencing.evidence import FenceReason
from tasuki.transfer.fencing.writer_fence import Escalation, WriterFence
from tasuki.transfer.liveness.progress_watch import ProgressWatch
from tasuki.transfer.protocol.handover_states import ReceiverEvent, ReceiverState, receiver_machine
from tasuki.transfer.protocol.messages import drain_from_wire, windows_from_wire
from tasuki.transfer.receiving.receiver import Receiver
from tasuki.transfer.rooms.receiving_room import LossKind, ReceivingRoom
from tasuki.transfer.timeline import Phase, ReceiverTrack
from tasuki.transfer.windows.destination import Destination
from tasuki.transfer.windows.send_report import Drain, WindowDigest

from . import handover_messages as wire
from .handover_settings import HandoverSettings
from .prefill_link import PrefillConnection, PrefillLink
from .pull_sender import PullSender, Say
from .room_stream import RoomStream, StreamBroke

Trail: TypeAlias = tuple[tuple[str, str], ...]

_ABORT_AGAIN_SECONDS = 0.1


@dataclass(frozen=True)
class _Say:
    """A pull's message for the stream."""

    message: pb.ReceiverMessage


@dataclass(frozen=True)
class _Stalled:
    """It stood still for longer than its state may."""

    reason: str
    cause: m.LossCause


RoomEvent = (
    pb.SenderMessage
    | m.HandoverGranted
    | m.HandoverDeclined
    | m.HandoverCancelled
    | StreamBroke
    | _Say
    | _Stalled
)


BeginPull: TypeAlias = Callable[[m.PullGrant, PrefillConnection, Say], PullSender]


class IncomingHandover:
    def __init__(
        self,
        wanted: m.HandoverWanted,
        link: PrefillLink,
        connection: PrefillConnection,
        post: Callable[[m.Inbox], None],
        receiver: Receiver,
        retry_seconds: float,
        settings: HandoverSettings,
        sever: Callable[[FenceReason], Awaitable[None]],
        begin_pull: BeginPull,
        trail: Trail = (),
    ) -> None:
        """begin_pull: serves what the prefill node pulls of this room; outlives it. trail: gRPC
        metadata by which the prefill node names the room's request."""
        self.room = wanted.ticket.room
        self.request_id = wanted.request_id
        self.generation = wanted.ticket.generation
        self.connection = connection
        self._wanted = wanted
        self._link = link
        self._post = post
        self._receiver = receiver
        self._settings = settings
        last = Escalation(settings.patience, connection.end, sever)
        self._fence = WriterFence(self.room, connection.evidence(), retry_seconds, last)
        self._core: ReceivingRoom[RoomEvent] = ReceivingRoom(
            self.room,
            self.generation,
            receiver_machine(),
            settings.deadlines,
            settings.landing,
            receiver,
            self._fence,
            self,
            f"room {self.room}",
            {"request_id": self.request_id},
        )
        self._done: pb.Done | None = None
        self._position: int | None = None
        """In the prefill node's queue."""
        self._waits = ProgressWatch(settings.deadlines.look)
        self._landed = 0
        self._begin_pull = begin_pull
        self._pull: PullSender | None = None
        self._stream = RoomStream(
            self.room,
            lambda: connection.stub.Transfer(metadata=trail),
            self.put,
            settings.write,
        )

    def put(self, event: RoomEvent) -> None:
        self._core.inbox.put(event)

    def unread(self) -> list[m.HandoverGranted | m.HandoverCancelled]:
        """Messages of the engine that came too late for this room; call after run()."""
        events = self._core.inbox.unread()
        return [e for e in events if isinstance(e, m.HandoverGranted | m.HandoverCancelled)]

    async def run(self) -> None:
        """From Reserve to the end, the fence included."""
        self._core.machine.apply(ReceiverEvent.RESERVE)
        reach(Place.RECEIVER_BEFORE_RESERVE)
        self._stream.say(wire.reserve(self.connection.id, self._wanted))
        self._core.tasks.start(self._stream.run)
        self._core.tasks.start(self._watch_connection)
        try:
            await self._core.run()
        finally:
            if self._pull is not None:
                self._pull.stop("its room is over")

    async def _watch_connection(self) -> None:
        await self.connection.lost.wait()
        self.put(StreamBroke(f"prefill node {self.connection.node.name} is lost"))

    def overdue(self) -> _Stalled | None:
        state = self._core.machine.state
        pulled = None if self._pull is None else self._pull.progress
        landed = self._core.landed
        self.connection.landed += max(0, landed - self._landed)
        self._landed = landed
        # Granted, and none of it has come: it waits for those that the sender computes before it.
        behind = state is ReceiverState.GRANTED and not landed
        waits = behind or state is ReceiverState.RESERVED
        waited = self._waits.still((state if waits else None, pulled))
        queue = self._settings.deadlines.queue
        if waits and waited > queue:
            reason = f"its prompt was not begun for {queue} s: {state.value}"
            return _Stalled(reason, m.LossCause.QUEUE_TIMEOUT)
        others = self.connection.landed if behind else 0
        allowed = self._core.stood_still(self._position, pulled, landed, others)
        if allowed is None:
            return None
        if state is ReceiverState.ACCEPTED:
            reason = f"no room to receive it came free here for {allowed} s"
            return _Stalled(reason, m.LossCause.NO_ROOM)
        return _Stalled(f"nothing moved for {allowed} s: {state.value}", m.LossCause.STALLED)

    def take(self, event: RoomEvent) -> None:
        match event:
            case pb.SenderMessage():
                self._heard(event)
            case m.HandoverGranted(grant=grant):
                self._grant(grant)
            case m.HandoverDeclined():
                self._lose("no room to receive it now", m.LossCause.NO_ROOM)
            case m.HandoverCancelled():
                self._core.machine.apply(ReceiverEvent.LOSE)
            case StreamBroke(reason=reason):
                # After Done nothing more comes, and nothing more is needed.
                if self._core.machine.state is not ReceiverState.VERIFYING:
                    self._lose(reason)
            case _Stalled(reason=reason, cause=cause):
                self._lose(reason, cause)
            case _Say(message=message):
                self._stream.say(message)

    def _heard(self, message: pb.SenderMessage) -> None:
        machine = self._core.machine
        match message.WhichOneof("message"):
            case "queued":
                machine.apply(ReceiverEvent.QUEUED)
                self._position = message.queued.position
            case "accepted":
                machine.apply(ReceiverEvent.ACCEPTED)
                reach(Place.RECEIVER_ON_ACCEPTED)
                self._core.phases.mark(Phase.ACCEPTED)
                self._post(m.GrantWanted(self.room))
            case "refused":
                machine.apply(ReceiverEvent.REFUSED)
                self._post(wire.refused_from_wire(self.room, message.refused))
            case "pull":
                self._serve_pull(message.pull)
            case "stop_pull":
                if self._pull is not None:
                    self._pull.stop("the prefill node does not wait any longer")
            case "ready":
                self._ready(message.ready)
            case "done":
                if self._core.done(message.done.generation):
                    self._done = message.done
                    self._core.verify(partial(_sent, message.done))
            case "failed":
                self._fence.acknowledge(drain_from_wire(message.failed.drain))
                self._lose(message.failed.reason)
            case "aborted":
                self._fence.acknowledge(drain_from_wire(message.aborted.drain))
                self._lose("the prefill node ended the room")
            case _:
                self._lose("the prefill node sent a message of another version")

    def _serve_pull(self, pull: pb.Pull) -> None:
        if self._pull is not None or self._core.machine.state is not ReceiverState.RESERVED:
            self._lose("the prefill node pulls twice, or too late")
            return
        grant = wire.pull_from_wire(self.room, pull)
        self._pull = self._begin_pull(
            grant, self.connection, lambda message: self.put(_Say(message))
        )

    def _grant(self, grant: m.Grant) -> None:
        self._core.machine.apply(ReceiverEvent.GRANT)
        reach(Place.RECEIVER_ON_GRANT)
        target = Destination(grant.first_page, grant.pages, grant.slot)
        try:
            self._receiver.expect(self.room, self.generation, target)
        except TransferError as error:
            # The sender never saw the grant.
            self._fence.acknowledge(Drain.DRAINED)
            self._lose(str(error))
            return
        self._core.phases.mark(Phase.GRANTED)
        self._stream.say(wire.grant(grant))

    def _ready(self, ready: pb.Ready) -> None:
        self._core.machine.apply(ReceiverEvent.READY)
        if ready.generation != self.generation:
            self._lose(f"ready of generation {ready.generation}, not {self.generation}")
            return
        reach(Place.RECEIVER_ON_READY)
        self._core.phases.mark(Phase.READY)
        self._post(wire.ready_from_wire(self.room, ready, self.connection.node.name))

    def commit(self, received: ReceiverTrack) -> None:
        assert self._done is not None
        done = wire.done_from_wire(self.room, self._done, received)
        reach(Place.RECEIVER_BEFORE_COMMIT)
        self._core.machine.apply(ReceiverEvent.VERIFIED)
        self._post(done)
        reach(Place.RECEIVER_AFTER_COMMIT)

    def lose(self, reason: str, kind: LossKind) -> None:
        self._lose(reason, m.LossCause[kind.name])

    def _lose(self, reason: str, cause: m.LossCause = m.LossCause.STREAM) -> None:
        self._post(m.HandoverFailed(self.room, self._core.lose(reason), cause=cause))

    def fenced(self) -> None:
        self._post(m.WriterFenced(self.room))

    async def ask_to_drain(self) -> None:
        """On the stream while that stands, then by the unary call."""
        if not self._fence.answered:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.acknowledge):
                    await self._ask_on_stream()
        while not self._fence.answered:
            drain = await self._link.abort(
                self.connection, self.room, self.generation, self._settings.acknowledge
            )
            if drain is None:
                await asyncio.sleep(_ABORT_AGAIN_SECONDS)
            else:
                self._fence.acknowledge(drain)

    async def _ask_on_stream(self) -> None:
        """Abort, and read what was under way until the reply, or until the stream ends."""
        if self._stream.over:
            return
        self._stream.say(wire.abort(self.generation))
        while not isinstance(event := await self._core.inbox.get(), StreamBroke):
            if not isinstance(event, pb.SenderMessage):
                continue
            match event.WhichOneof("message"):
                case "aborted":
                    self._fence.acknowledge(drain_from_wire(event.aborted.drain))
                case "failed":
                    self._fence.acknowledge(drain_from_wire(event.failed.drain))
                case "done":
                    # Every window was flushed before this was sent.
                    self._core.machine.apply(ReceiverEvent.DONE)
                    self._fence.acknowledge(Drain.DRAINED)
                case "ready":
                    self._core.machine.apply(ReceiverEvent.READY)
            if self._fence.answered:
                return


def _sent(done: pb.Done) -> tuple[WindowDigest, ...]:
    reach(Place.RECEIVER_BEFORE_VERIFY)
    return windows_from_wire(done.windows)
