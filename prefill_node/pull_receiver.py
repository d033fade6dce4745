"""One pull on the prefill node, where the return path is received: between a hand-over's stream,
the engine and the receiver.

Owns what a pull adds to a receiving room (transfer/rooms/receiving_room.py). Lives on when its
hand-over is over, until it is committed or fenced. Thread rule: the event loop.
Invariant: the engine is given exactly one of PullCommitted, or PullLost followed by PullFenced.
"""

from collections.abc import Callable
from functools import partial

from tasuki.engine import messages as m
from tasuki.proto import handover_pb2 as pb
from tasuki.proto.report_pb2 import TransferReport
from tasuki.transfer import peer_values
from tasuki.transfer.fencing.writer_fence import WriterFence
from tasuki.transfer.fencing.writer_liveness import WriterLife
from tasuki.transfer.protocol.handover_states import ReceiverEvent, ReceiverState
from tasuki.transfer.protocol.messages import drain_from_wire, windows_from_wire
from tasuki.transfer.protocol.pull_states import pull_receiver_machine
from tasuki.transfer.protocol.timeline_messages import sender_track_from_wire
from tasuki.transfer.receiving.receiver import Receiver
from tasuki.transfer.reports import Drain, HandoverTimeline, Phase, ReceiverTrack
from tasuki.transfer.rooms.receiving_room import LossKind, ReceivingRoom
from tasuki.transfer.rooms.room import Stalled, Stopped
from tasuki.transfer.rooms.room_deadlines import PullReceiverDeadlines
from tasuki.transfer.windows.window import Destination

from . import handover_messages as wire

PullEvent = pb.PullDone | pb.PullFailed | Stopped
Say = Callable[[pb.SenderMessage], None]
"""On the room's stream, in order, as long as the room lives; dropped after that."""


class PullReceiver(ReceivingRoom[PullEvent]):
    room: m.RoomId

    def __init__(
        self,
        grant: m.PullGrant,
        post: Callable[[m.Inbox], None],
        receiver: Receiver,
        writer: WriterLife,
        fence: WriterFence,
        deadlines: PullReceiverDeadlines,
        say: Say,
    ) -> None:
        """writer: the decode node. fence: of what it writes for this pull."""
        super().__init__(
            grant.room,
            grant.generation,
            pull_receiver_machine(),
            deadlines,
            deadlines.landing,
            receiver,
            fence,
            f"the pull of room {grant.room}",
            {},
        )
        self.writer = writer
        self._grant = grant
        self._post = post
        self._say = say
        self._report: TransferReport | None = None

    def lose(self, reason: str, kind: LossKind) -> None:
        self.mark_lost(reason)
        self._post(m.PullLost(self.room))

    async def run(self) -> None:
        """From the grant to the commit, or to the fence. Raises TransferError where the grant
        itself is wrong; nobody was asked then."""
        grant, asked = self._grant, wire.pull(self._grant)
        target = Destination(grant.first_page, grant.pages, grant.slot)
        self._receiver.expect(self.room, grant.generation, target)
        self.machine.apply(ReceiverEvent.GRANT)
        self.phases.mark(Phase.GRANTED)
        self._say(asked)
        await super().run()

    def take(self, event: PullEvent | Stalled) -> None:
        match event:
            case pb.PullDone():
                if self.done(event.generation):
                    peer_values.count(event.report.bytes, "report.bytes")
                    self._report = event.report
                    self.verify(partial(windows_from_wire, event.windows))
            case pb.PullFailed():
                if event.generation == self.generation:
                    self.fence.acknowledge(drain_from_wire(event.drain))
                self.lose(event.reason, LossKind.STREAM)
            case Stalled():
                self.lose(event.reason, LossKind.STREAM)
            case Stopped(reason=reason):
                # After PullDone nothing more comes, and nothing more is needed.
                if self.machine.state is ReceiverState.GRANTED:
                    self.lose(reason, LossKind.STREAM)

    def commit(self, received: ReceiverTrack) -> None:
        assert self._report is not None
        timeline = HandoverTimeline(sender_track_from_wire(self._report.track), received)
        seconds = received.phases[-1].at
        report = m.PullReport(self._grant.tokens, self._report.bytes, seconds, timeline)
        self.machine.apply(ReceiverEvent.VERIFIED)
        self._post(m.PullCommitted(self.room, report))

    def fenced(self) -> None:
        self._post(m.PullFenced(self.room))

    async def ask_to_drain(self) -> None:
        """On the stream while that stands; its end asks the same. A renewal answers in any case."""
        if not self.fence.answered:
            self._say(pb.SenderMessage(stop_pull=pb.StopPull(generation=self.generation)))
        while True:
            event = await self._events.get()
            if isinstance(event, pb.PullFailed) and event.generation == self.generation:
                self.fence.acknowledge(drain_from_wire(event.drain))
            if isinstance(event, pb.PullDone) and event.generation == self.generation:
                self.machine.apply(ReceiverEvent.DONE)
                self.fence.acknowledge(Drain.DRAINED)
