"""One room on the prefill node, of a hand-over, a copy or a fetch: between the receiver's stream,
the engine and the sender.

Turns messages into events of the pure side (transfer/rooms/sending.py) and performs its actions.
Knows no gRPC. Thread rule: the event loop.
Invariants: the engine is given PrefillEnd exactly once, after the sender drained (or gave up
draining); the receiver gets the end of the room exactly once, and nothing after it.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TypeAlias

from tasuki.engine import messages as m
from tasuki.proto import handover_pb2 as pb
from tasuki.transfer.control.driven_room import SendingRoom
from tasuki.transfer.failpoints import Place, reach
from tasuki.transfer.protocol.messages import drain_to_wire
from tasuki.transfer.rooms import actions as do
from tasuki.transfer.rooms import events as on
from tasuki.transfer.rooms import messages as say
from tasuki.transfer.rooms.actions import Action
from tasuki.transfer.rooms.deadlines import SenderDeadlines
from tasuki.transfer.rooms.events import Event
from tasuki.transfer.rooms.sending import Sending, SendingTerms
from tasuki.transfer.rooms.states import COPY, FETCH, HANDOVER, Kind
from tasuki.transfer.sending.sender import Sender
from tasuki.transfer.windows.destination import Destination
from tasuki.transfer.windows.send_report import Drain

from . import handover_messages as wire
from .pull_receiver import PullReceiver, Speak

log = logging.getLogger(__name__)

BeginPull: TypeAlias = Callable[[m.PullGrant, str, Speak], PullReceiver | None]
FromEngine: TypeAlias = (
    m.PrefillQueued
    | m.PrefillAccepted
    | m.PrefillRefused
    | m.PrefillToken
    | m.FetchRefused
    | m.StateHeld
    | m.PullWanted
)


def kind_of(reserve: m.PrefillReserve | m.FetchReserve) -> Kind:
    if isinstance(reserve, m.FetchReserve):
        return FETCH
    # A room of one token behind what the receiver offers is for that.
    ticket = reserve.ticket
    is_copy = ticket.sampling.max_new_tokens == 1 and ticket.offered == len(reserve.prompt) - 1
    return COPY if is_copy else HANDOVER


def grant_of(granted: m.Grant) -> say.Grant:
    target = Destination(granted.first_page, granted.pages, granted.slot)
    return say.Grant(granted.generation, target, granted)


class OutgoingRoom(SendingRoom):
    def __init__(
        self,
        reserve: m.PrefillReserve | m.FetchReserve,
        connection: str,
        post: Callable[[m.Inbox], None],
        sender: Sender,
        progress_seconds: float,
        begin_pull: BeginPull,
        speak: Speak,
        request_id: str = "",
        *,
        deadlines: SenderDeadlines | None = None,
        awaits_gateway: bool = False,
    ) -> None:
        """progress_seconds: between two repetitions of Queued, and between two looks at the
        deadlines. begin_pull: fetches what the ticket offers; outlives the room. speak: to the
        receiver, in order, up to Closed. request_id: as the receiver's clients know it; empty where
        it sent none. awaits_gateway: nothing is computed before the gateway's call."""
        ticket = reserve.ticket
        terms = SendingTerms(deadlines or SenderDeadlines(), progress_seconds, awaits_gateway)
        side = Sending(kind_of(reserve), ticket.room, ticket.generation, terms, time.monotonic())
        named: dict[str, str | int] = {"request_id": request_id, "room": ticket.room}
        super().__init__(side, connection, sender, f"room {ticket.room}", named)
        self.id = ticket.room
        self.ended: asyncio.Future[Drain] = asyncio.get_running_loop().create_future()
        self._reserve = reserve
        self._post = post
        self._begin_pull = begin_pull
        self._speak = speak
        self._pull: PullReceiver | None = None
        self._pulled: m.PullReport | None = None

    @property
    def prompt(self) -> m.Tokens:
        return self._reserve.prompt

    def facts(self) -> on.Look:
        return on.Look(self.progress, None if self._pull is None else self._pull.windows_landed)

    def hear_engine(self, message: FromEngine) -> None:
        """Take what the engine says of the room."""
        self.put(self._event_of(message))

    def _event_of(self, message: FromEngine) -> Event:
        match message:
            case m.PrefillAccepted():
                return on.Leased()
            case m.PrefillQueued(wait_seconds=seconds):
                return on.Waits(seconds)
            case m.PrefillRefused(error=error):
                is_late = error.kind is m.ErrorKind.QUEUE_TIMEOUT
                return on.Refusal(error.message, is_late, wire.refused(error))
            case m.FetchRefused(refusal=refusal):
                return on.Refusal(refusal.value, payload=wire.fetch_refused(refusal))
            case m.StateHeld():
                return on.Announced()
            case m.PullWanted(grant=grant):
                return on.PullWanted(grant)
        self._pulled = message.pulled
        tail = self._sender.remaining_seconds(self.room)
        return on.Announced(wire.ready(self.generation, message, tail))

    def hear_pull(self, message: pb.PullDone | pb.PullFailed) -> None:
        """Take what the receiver says of the room's pull."""
        if self._pull is not None:
            self._pull.hear(message)

    def tell(self, action: Action) -> Event | None:
        match action:
            case do.Say(message=message):
                self._say(message)
            case do.Reserve():
                self._post(self._reserve)
            case do.Start(payload=grant):
                self._post(m.PrefillStart(grant))
            case do.BeginPull(payload=grant):
                self._pull = self._begin_pull(grant, self.connection, self._speak)
            case do.EndPull(reason=reason):
                if self._pull is not None:
                    self._pull.put(on.Stopped(reason))
        return None

    def perform(self, action: Action) -> Event | None:
        if isinstance(action, do.Open):
            reach(Place.SENDER_ON_GRANT)
        return super().perform(action)

    def _say(self, message: say.Message) -> None:
        match message:
            case say.Accepted():
                self._speak(pb.SenderMessage(accepted=pb.Accepted()))
            case say.Queued(position=position, wait=wait):
                queued = pb.Queued(position=position, wait_seconds=wait)
                self._speak(pb.SenderMessage(queued=queued))
            case say.Refused(payload=said) | say.Ready(payload=said):
                self._speak(said)
            case say.Held(generation=generation):
                self._speak(pb.SenderMessage(held=pb.Held(generation=generation)))
            case say.Done(payload=(report, track)):
                pull = None if self._pulled is None else self._pulled.timeline
                self._speak(wire.done(self.generation, report, track, pull))
            case say.Ended(drain=drain, reason=None):
                aborted = pb.Aborted(drain=drain_to_wire(drain))
                self._speak(pb.SenderMessage(aborted=aborted))
            case say.Ended(drain=drain, reason=reason):
                failed = pb.Failed(reason=reason, drain=drain_to_wire(drain))
                self._speak(pb.SenderMessage(failed=failed))

    def closed(self) -> None:
        """Its engine lets go; behind it the room says its last word."""
        drain = self._side.drain if self._side.is_over else Drain.FORCED
        if self._pull is not None:
            self._pull.put(on.Stopped("its room is over"))
        if self._side.is_over:
            cause = self._side.given_up
            given_up = None if cause is None else m.LossCause[cause.name]
            self._post(m.PrefillEnd(self.id, given_up))
        self.ended.set_result(drain)

    def close(self) -> None:
        """Say the last word, once the room is over."""
        self._speak(pb.SenderMessage(closed=pb.Closed()))
