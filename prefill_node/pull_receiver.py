"""One pull on the prefill node, where the return path is received: between a hand-over's stream,
the engine and the receiver.

Performs the actions of the pure side (transfer/rooms/receiving.py). Lives on when its hand-over is
over, until it is committed or fenced. Thread rule: the event loop.
Invariant: the engine is given exactly one of PullCommitted, or PullLost followed by PullFenced.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tasuki.engine import messages as m
from tasuki.proto import handover_pb2 as pb
from tasuki.transfer import peer_values
from tasuki.transfer.control.connection_breaker import ConnectionBreaker
from tasuki.transfer.control.driven_room import ReceivingRoom
from tasuki.transfer.control.writer_life import WriterLife
from tasuki.transfer.errors import PeerInvalid
from tasuki.transfer.protocol.messages import drain_from_wire, windows_from_wire
from tasuki.transfer.protocol.timeline_messages import sender_track_from_wire
from tasuki.transfer.receiving.receiver import Receiver
from tasuki.transfer.rooms import actions as do
from tasuki.transfer.rooms import events as on
from tasuki.transfer.rooms import messages as say
from tasuki.transfer.rooms.actions import Action
from tasuki.transfer.rooms.deadlines import PullReceiverDeadlines
from tasuki.transfer.rooms.events import Event
from tasuki.transfer.rooms.receiving import Receiving, ReceivingTerms
from tasuki.transfer.rooms.states import PULL
from tasuki.transfer.timeline import HandoverTimeline
from tasuki.transfer.windows.destination import Destination
from tasuki.transfer.windows.send_report import WindowDigest

from . import handover_messages as wire

log = logging.getLogger(__name__)

Speak = Callable[[pb.SenderMessage], None]
"""On the room's stream, in order, as long as the room lives; dropped after that."""


@dataclass(frozen=True)
class PullSettings:
    """deadlines: by state. patience: seconds until a lost pull that is not fenced gives up the
    connection."""

    deadlines: PullReceiverDeadlines
    patience: float


class PullReceiver(ReceivingRoom):
    def __init__(
        self,
        grant: m.PullGrant,
        post: Callable[[m.Inbox], None],
        receiver: Receiver,
        breaker: ConnectionBreaker,
        writer: WriterLife,
        settings: PullSettings,
        give_up: Callable[[], None],
        speak: Speak,
    ) -> None:
        """writer: the decode node. give_up: ends its connection."""
        patience, deadlines = settings.patience, settings.deadlines
        terms = ReceivingTerms(deadlines, writer.terms(patience, patience))
        side = Receiving(PULL, grant.room, grant.generation, terms, time.monotonic())
        target = Destination(grant.first_page, grant.pages, grant.slot)
        side.grant_first(say.Grant(grant.generation, target))
        name = f"the pull of room {grant.room}"
        super().__init__(side, receiver, breaker, writer, deadlines.landing, name, {})
        self.id = grant.room
        self._grant = grant
        self._post = post
        self._give_up = give_up
        self._speak = speak

    @property
    def windows_landed(self) -> int | None:
        """Grows as windows land; None once the pull is lost or over."""
        return None if self._side.is_lost or self.is_over else self.progress

    def hear(self, message: pb.PullDone | pb.PullFailed) -> None:
        """Take what the decode node says of the pull."""
        self.put(_heard(message))

    def tell(self, action: Action) -> Event | None:
        match action:
            case do.Say(message=say.Ask()):
                self._speak(wire.pull(self._grant))
            case do.Say(message=say.StopPull()):
                stop = pb.StopPull(generation=self.generation)
                self._speak(pb.SenderMessage(stop_pull=stop))
            case do.Prepare(payload=done):
                return on.Prepared(self._report(done))
            case do.Commit(payload=report):
                self._post(m.PullCommitted(self.id, report))
            case do.TellLost():
                self._post(m.PullLost(self.id))
            case do.TellFenced():
                self._post(m.PullFenced(self.id))
            case do.GiveUp():
                log.warning("%s: no drain acknowledgement", self.name)
                self._give_up()
        return None

    def _report(self, done: pb.PullDone) -> m.PullReport:
        received = self._receiver.track(self.room, self._side.phases)
        timeline = HandoverTimeline(sender_track_from_wire(done.report.track), received)
        seconds = received.phases[-1].at
        return m.PullReport(self._grant.tokens, done.report.bytes, seconds, timeline)


def _heard(message: pb.PullDone | pb.PullFailed) -> say.Message:
    generation = message.generation
    if isinstance(message, pb.PullFailed):
        return say.Ended(drain_from_wire(message.drain), message.reason, generation)
    try:
        return say.Done(generation, _sent(message), message)
    except PeerInvalid as error:
        return say.Contradiction(str(error))


def _sent(done: pb.PullDone) -> Sequence[WindowDigest]:
    """Raises PeerInvalid naming the field."""
    peer_values.count(done.report.bytes, "report.bytes")
    return windows_from_wire(done.windows)
