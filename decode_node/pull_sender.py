"""One pull on the decode node, where the return path is sent: between a room's stream, the engine
and the sender.

Performs the actions of the pure side (transfer/rooms/sending.py). Lives on when its hand-over is
over, until it has drained. Its messages go to the room's stream, and how it ended also to the
connection, whose renewals carry it. Thread rule: the event loop.
Invariants: the engine is given PullEnd exactly once, after the drain; the connection reports the
drain exactly once, whatever went over the stream.
"""

import logging
import time
from collections.abc import Callable

from tasuki.engine import messages as m
from tasuki.proto import handover_pb2 as pb
from tasuki.transfer.control.driven_room import SendingRoom
from tasuki.transfer.rooms import actions as do
from tasuki.transfer.rooms import events as on
from tasuki.transfer.rooms import messages as say
from tasuki.transfer.rooms.actions import Action
from tasuki.transfer.rooms.deadlines import PullSenderDeadlines
from tasuki.transfer.rooms.events import Event
from tasuki.transfer.rooms.sending import Sending, SendingTerms
from tasuki.transfer.rooms.states import PULL
from tasuki.transfer.sending.sender import Sender
from tasuki.transfer.windows.destination import Destination
from tasuki.transfer.windows.window import FinishedLayers

from . import handover_messages as wire
from .prefill_link import PrefillConnection

log = logging.getLogger(__name__)

Speak = Callable[[pb.ReceiverMessage], None]
"""On the room's stream, in order, as long as the room lives; dropped after that."""


class PullSender(SendingRoom):
    def __init__(
        self,
        grant: m.PullGrant,
        connection: PrefillConnection,
        post: Callable[[m.Inbox], None],
        sender: Sender,
        speak: Speak,
        deadlines: PullSenderDeadlines,
    ) -> None:
        terms = SendingTerms(deadlines, deadlines.look)
        side = Sending(PULL, grant.room, grant.generation, terms, time.monotonic())
        side.target(Destination(grant.first_page, grant.pages, grant.slot))
        super().__init__(side, connection.id, sender, f"pull of room {grant.room}", {})
        self.id = grant.room
        self._grant = grant
        self._peer = connection
        self._post = post
        self._speak = speak

    @property
    def windows_sent(self) -> int | None:
        """Grows as windows move; None once the pull is over."""
        return None if self.is_over else self.progress

    def tell(self, action: Action) -> Event | None:
        grant = self._grant
        match action:
            case do.Reserve():
                self._post(m.PullAsked(self.id, grant.tokens, grant.first_page))
            case do.Plan(payload=source):
                first = grant.first_page
                plan = FinishedLayers.long_finished(first, source.pages, source.slot)
                self._sender.plan_forward(self.room, plan)
            case do.Say(message=say.Done(payload=(report, track))):
                self._speak(wire.pull_done(self.generation, report, track))
            case do.Say(message=say.Ended(drain=drain, reason=reason)):
                log.info("%s: %s", self.name, reason)
                self._speak(wire.pull_failed(self.generation, reason or "", drain))
        return None

    def closed(self) -> None:
        if not self._side.is_over:
            # It was dropped, and nobody knows what is in flight.
            return
        self._post(m.PullEnd(self.id))
        self._peer.drained(self.room, self.generation, self._side.drain)


def event_of(message: m.PullPinned | m.PullRefused) -> Event:
    """The engine's answer to PullAsked."""
    if isinstance(message, m.PullPinned):
        return on.Pinned(message.source)
    return on.Refusal(message.reason)
