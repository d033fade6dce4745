"""One hand-over on the decode node: between the prefill node's stream, the engine and the receiver.

Owns what a hand-over adds to a receiving room (transfer/rooms/receiving_room.py): the stream, the
place in the sender's queue, the grant, the first token, and how a drain is asked for. Thread rule:
the event loop.
Invariants: every room that was granted ends in exactly one of RemoteDone, or HandoverFailed (not
where the engine cancelled) followed by WriterFenced.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

from tasuki.engine import messages as m
from tasuki.proto import handover_pb2 as pb
from tasuki.transfer import peer_values
from tasuki.transfer.errors import TransferError
from tasuki.transfer.failpoints import Place, reach
from tasuki.transfer.fencing.writer_fence import WriterFence
from tasuki.transfer.liveness.progress_watch import ProgressWatch
from tasuki.transfer.protocol.handover_states import ReceiverEvent, ReceiverState, receiver_machine
from tasuki.transfer.protocol.messages import drain_from_wire, windows_from_wire
from tasuki.transfer.receiving.receiver import Receiver
from tasuki.transfer.rooms.receiving_room import LossKind, ReceivingRoom
from tasuki.transfer.rooms.room import Stalled, Stopped
from tasuki.transfer.timeline import Phase, ReceiverTrack
from tasuki.transfer.windows.destination import Destination
from tasuki.transfer.windows.send_report import Drain, WindowDigest

from . import handover_messages as wire
from .handover_settings import HandoverSettings
from .prefill_link import PrefillConnection
from .prefill_routing.chosen_node import Chosen
from .pull_sender import PullSender, Say
from .room_stream import StreamBroke

_ABORT_AGAIN_SECONDS = 0.1


@dataclass(frozen=True)
class _NotBegun(Stalled):
    """The sender's queue has had the prompt for too long, moving or not."""

    @property
    def reason(self) -> str:
        return f"its prompt was not begun for {self.seconds} s: {self.state.value}"


RoomEvent = (
    pb.SenderMessage | m.HandoverGranted | m.HandoverDeclined | m.HandoverCancelled | StreamBroke
)


BeginPull: TypeAlias = Callable[[m.PullGrant, PrefillConnection, Say], PullSender]


class IncomingHandover(ReceivingRoom[RoomEvent]):
    room: m.RoomId

    def __init__(
        self,
        wanted: m.HandoverWanted,
        chosen: Chosen,
        fence: WriterFence,
        post: Callable[[m.Inbox], None],
        receiver: Receiver,
        settings: HandoverSettings,
        begin_pull: BeginPull,
        traceparent: str = "",
    ) -> None:
        """chosen: the prefill node, and why. begin_pull: serves what that pulls of this room;
        outlives it. traceparent: of the room's request; empty where it has none. REQUIRES: the
        connection is alive."""
        super().__init__(
            wanted.ticket.room,
            wanted.ticket.generation,
            receiver_machine(),
            settings.deadlines,
            settings.landing,
            receiver,
            fence,
            f"room {wanted.ticket.room}",
            {"request_id": wanted.request_id},
        )
        self.request_id = wanted.request_id
        self.connection = chosen.connection
        self._wanted = wanted
        self._chosen = chosen
        self._link = chosen.link
        self._wait: float | None = None
        """Seconds of prefill that were before it when it came."""
        self._post = post
        self._settings = settings
        self._done: pb.Done | None = None
        self._position: int | None = None
        """In the prefill node's queue."""
        self._waits = ProgressWatch(settings.deadlines.look)
        self._landed = 0
        self._begin_pull = begin_pull
        self._pull: PullSender | None = None
        self._traceparent = traceparent
        self._stream = self.connection.stream()
        self._line = self._stream.join(self.room, self.put)

    async def run(self) -> None:
        """From Reserve to the end, the fence included."""
        self.machine.apply(ReceiverEvent.RESERVE)
        reach(Place.RECEIVER_BEFORE_RESERVE)
        self._line.say(wire.reserve(self._wanted, self._traceparent))
        try:
            await super().run()
        finally:
            self._stream.leave(self._line)
            if self._pull is not None:
                self._pull.put(Stopped("its room is over"))

    def _stood_still(self) -> Stalled | None:
        landed = self.progress or 0
        self.connection.landed += max(0, landed - self._landed)
        self._landed = landed
        state = self.machine.state
        waits = self._behind or state is ReceiverState.RESERVED
        waited = self._waits.still((state if waits else None, self._pulled))
        queue = self._settings.deadlines.queue
        if waits and waited > queue:
            return _NotBegun(state, queue)
        return super()._stood_still()

    def _marks(self) -> Hashable:
        others = self.connection.landed if self._behind else 0
        return self._position, self._pulled, self._landed, others

    @property
    def _behind(self) -> bool:
        """Granted, and none of it has come: it waits for those that the sender computes before
        it."""
        return self.machine.state is ReceiverState.GRANTED and not self._landed

    @property
    def _pulled(self) -> int | None:
        return None if self._pull is None else self._pull.progress

    def take(self, event: RoomEvent | Stalled) -> None:
        match event:
            case pb.SenderMessage():
                self._heard(event)
            case m.HandoverGranted(grant=grant):
                self._grant(grant)
            case m.HandoverDeclined():
                self._lose("no room to receive it now", m.LossCause.NO_ROOM)
            case m.HandoverCancelled():
                self.machine.apply(ReceiverEvent.LOSE)
            case StreamBroke(reason=reason):
                # After Done nothing more comes, and nothing more is needed.
                if self.machine.state is not ReceiverState.VERIFYING:
                    self._lose(reason)
            case _NotBegun():
                self._lose(event.reason, m.LossCause.QUEUE_TIMEOUT)
            case Stalled(state=ReceiverState.ACCEPTED, seconds=seconds):
                reason = f"no room to receive it came free here for {seconds} s"
                self._lose(reason, m.LossCause.NO_ROOM)
            case Stalled():
                self._lose(event.reason, m.LossCause.STALLED)

    def _heard(self, message: pb.SenderMessage) -> None:
        machine = self.machine
        match message.WhichOneof("message"):
            case "queued":
                machine.apply(ReceiverEvent.QUEUED)
                self._position = message.queued.position
                if message.queued.HasField("wait_seconds") and self._wait is None:
                    self._must_wait(message.queued.wait_seconds)
            case "accepted":
                machine.apply(ReceiverEvent.ACCEPTED)
                reach(Place.RECEIVER_ON_ACCEPTED)
                self.phases.mark(Phase.ACCEPTED)
                self._post(m.GrantWanted(self.room))
            case "refused":
                machine.apply(ReceiverEvent.REFUSED)
                self._post(wire.refused_from_wire(self.room, message.refused))
            case "pull":
                self._serve_pull(message.pull)
            case "stop_pull":
                if self._pull is not None:
                    self._pull.put(Stopped("the prefill node does not wait any longer"))
            case "ready":
                self._ready(message.ready)
            case "done":
                if self.done(message.done.generation):
                    self._done = message.done
                    self.verify(partial(_sent, message.done))
            case "failed":
                self.fence.acknowledge(drain_from_wire(message.failed.drain))
                self._lose(message.failed.reason)
            case "aborted":
                self.fence.acknowledge(drain_from_wire(message.aborted.drain))
                self._lose("the prefill node ended the room")
            case _:
                self._lose("the prefill node sent a message of another version")

    def _must_wait(self, seconds: float) -> None:
        """Where another node would begin it so much sooner, it goes there."""
        wait = self._wait = peer_values.seconds(seconds, "queued.wait_seconds")
        chosen = self._chosen
        self.connection.load.answered(wait, chosen.asked_at, time.monotonic())
        if self._pull is None and chosen.second is not None and chosen.should_move(wait):
            reason = f"{wait:.3g} s of other prompts are before it"
            self._lose(reason, m.LossCause.MOVED)

    def _serve_pull(self, pull: pb.Pull) -> None:
        if self._pull is not None or self.machine.state is not ReceiverState.RESERVED:
            self._lose("the prefill node pulls twice, or too late")
            return
        grant = wire.pull_from_wire(self.room, pull)
        self._pull = self._begin_pull(grant, self.connection, self._line.say)

    def _grant(self, grant: m.Grant) -> None:
        self.machine.apply(ReceiverEvent.GRANT)
        reach(Place.RECEIVER_ON_GRANT)
        target = Destination(grant.first_page, grant.pages, grant.slot)
        try:
            self._receiver.expect(self.room, self.generation, target)
        except TransferError as error:
            # The sender never saw the grant.
            self.fence.acknowledge(Drain.DRAINED)
            self._lose(str(error))
            return
        self.phases.mark(Phase.GRANTED)
        self._line.say(wire.grant(grant))

    def _ready(self, ready: pb.Ready) -> None:
        self.machine.apply(ReceiverEvent.READY)
        if ready.generation != self.generation:
            self._lose(f"ready of generation {ready.generation}, not {self.generation}")
            return
        reach(Place.RECEIVER_ON_READY)
        self.phases.mark(Phase.READY)
        remote = wire.ready_from_wire(self.room, ready, self.connection.node.name)
        report = self._chosen.report(self._wait, remote.hit.usable_tokens)
        self._post(replace(remote, prefill_choice=report))

    def commit(self, received: ReceiverTrack) -> None:
        assert self._done is not None
        done = wire.done_from_wire(self.room, self._done, received)
        reach(Place.RECEIVER_BEFORE_COMMIT)
        self.machine.apply(ReceiverEvent.VERIFIED)
        self._post(done)
        reach(Place.RECEIVER_AFTER_COMMIT)

    def lose(self, reason: str, kind: LossKind) -> None:
        self._lose(reason, m.LossCause[kind.name])

    def _lose(self, reason: str, cause: m.LossCause = m.LossCause.STREAM) -> None:
        self._post(m.HandoverFailed(self.room, self.mark_lost(reason), cause=cause))

    def fenced(self) -> None:
        self._post(m.WriterFenced(self.room))

    async def ask_to_drain(self) -> None:
        """On the stream while that stands, then by the unary call."""
        if not self.fence.answered:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.acknowledge):
                    await self._ask_on_stream()
        while not self.fence.answered:
            drain = await self._link.abort(
                self.connection, self.room, self.generation, self._settings.acknowledge
            )
            if drain is None:
                await asyncio.sleep(_ABORT_AGAIN_SECONDS)
            else:
                self.fence.acknowledge(drain)

    async def _ask_on_stream(self) -> None:
        """Abort, and read what was under way until the reply, or until the stream ends."""
        if self._line.over:
            return
        self._line.say(pb.ReceiverMessage(abort=pb.Abort(generation=self.generation)))
        while not isinstance(event := await self._events.get(), StreamBroke):
            if not isinstance(event, pb.SenderMessage):
                continue
            match event.WhichOneof("message"):
                case "aborted":
                    self.fence.acknowledge(drain_from_wire(event.aborted.drain))
                case "failed":
                    self.fence.acknowledge(drain_from_wire(event.failed.drain))
                case "done":
                    # Every window was flushed before this was sent.
                    self.machine.apply(ReceiverEvent.DONE)
                    self.fence.acknowledge(Drain.DRAINED)
                case "ready":
                    self.machine.apply(ReceiverEvent.READY)
            if self.fence.answered:
                return


def _sent(done: pb.Done) -> tuple[WindowDigest, ...]:
    reach(Place.RECEIVER_BEFORE_VERIFY)
    return windows_from_wire(done.windows)
