"""One pull on the decode node, where the return path is sent: between a room's stream, the engine
and the sender.

Owns what a pull adds to a sending room (transfer/rooms/sending_room.py). Lives on when its
hand-over is over, until it has drained. Knows no gRPC calls: its messages go to the room's stream,
and how it ended also to the connection, whose renewals carry it. Thread rule: the event loop.
Invariants: the engine is given PullEnd exactly once, after the drain; the connection reports the
drain exactly once, whatever went over the stream.
"""

import logging
from collections.abc import Callable

from tasuki.engine import messages as m
from tasuki.proto import handover_pb2 as pb
from tasuki.transfer.errors import TransferError
from tasuki.transfer.protocol.handover_states import SenderEvent, SenderState
from tasuki.transfer.protocol.pull_states import pull_sender_machine
from tasuki.transfer.reports import Drain, Phase, SenderTrack, SendReport
from tasuki.transfer.rooms.room import Stalled
from tasuki.transfer.rooms.room_deadlines import PullSenderDeadlines
from tasuki.transfer.rooms.sending_room import SendingRoom
from tasuki.transfer.sending.sender import Sender
from tasuki.transfer.windows.window import Destination, FinishedLayers

from . import handover_messages as wire
from .prefill_link import PrefillConnection

log = logging.getLogger(__name__)

Say = Callable[[pb.ReceiverMessage], None]
"""On the room's stream, in order, as long as the room lives; dropped after that."""


PullEvent = m.PullPinned | m.PullRefused


class PullSender(SendingRoom[PullEvent]):
    room: m.RoomId

    def __init__(
        self,
        grant: m.PullGrant,
        connection: PrefillConnection,
        post: Callable[[m.Inbox], None],
        sender: Sender,
        say: Say,
        deadlines: PullSenderDeadlines,
    ) -> None:
        super().__init__(
            grant.room,
            grant.generation,
            connection.id,
            pull_sender_machine(),
            deadlines,
            deadlines.look,
            sender,
            f"pull of room {grant.room}",
            {},
        )
        self._grant = grant
        self._peer = connection
        self._post = post
        self._say = say

    def over(self, drain: Drain) -> None:
        self._post(m.PullEnd(self.room))
        self._peer.drained(self.room, self.generation, drain)

    def begin(self) -> None:
        self.machine.apply(SenderEvent.ASK)
        self.phases.mark(Phase.GRANTED)
        self._post(m.PullAsked(self.room, self._grant.tokens, self._grant.first_page))

    def take(self, event: PullEvent | Stalled) -> None:
        match event:
            case m.PullPinned(source=source):
                self._pinned(source)
            case m.PullRefused(reason=reason):
                self._refuse(reason)
            case Stalled():
                self.stop(event.reason)

    def _pinned(self, source: m.PullSource) -> None:
        if self.machine.state is not SenderState.PINNING:
            self.machine.apply(SenderEvent.PINNED)
            return
        grant = self._grant
        try:
            self.open(Destination(grant.first_page, grant.pages, grant.slot))
        except TransferError as error:
            self._refuse(str(error))
            return
        self.machine.apply(SenderEvent.PINNED)
        self.phases.mark(Phase.ACCEPTED)
        plan = FinishedLayers.long_finished(grant.first_page, source.pages, source.slot)
        self._sender.plan_forward(self.room, plan)

    def _refuse(self, reason: str) -> None:
        if self.machine.apply(SenderEvent.REFUSE) is SenderState.REFUSED:
            self.send_end(reason, Drain.DRAINED)

    def send_done(self, report: SendReport, track: SenderTrack) -> None:
        self._say(wire.pull_done(self.generation, report, track))

    def send_end(self, failure: str | None, drain: Drain) -> None:
        log.info("pull of room %d: %s", self.room, failure)
        self._say(wire.pull_failed(self.generation, failure or "", drain))
