"""One room on the prefill node: between the receiver's stream, the engine and the sender.

Owns the room's machine and what goes out on its stream. Knows no gRPC. Thread rule: the event loop
only; the sender's callbacks come in through call_soon_threadsafe.
Invariants: the engine hears PrefillEnd exactly once, after the sender drained (or gave up
draining); the receiver hears how the room ended exactly once, and nothing after it.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from tasuki.engine import messages as m
from tasuki.proto import handover_pb2 as pb
from tasuki.transfer.errors import TransferError
from tasuki.transfer.failpoints import Place, reach
from tasuki.transfer.liveness.progress_watch import ProgressWatch
from tasuki.transfer.protocol.handover_states import (
    IllegalTransition,
    SenderEvent,
    SenderState,
    sender_machine,
)
from tasuki.transfer.rooms.room_deadlines import SenderDeadlines
from tasuki.transfer.sending.outgoing_room import RoomBroke, RoomEnd, RoomSent
from tasuki.transfer.sending.sender import Sender
from tasuki.transfer.timeline import Phase, PhaseClock, sender_track
from tasuki.transfer.windows.destination import Destination
from tasuki.transfer.windows.send_report import Drain, SendReport

from . import handover_messages as wire
from .pull_receiver import IncomingPull, Say

log = logging.getLogger(__name__)

_OVER = (SenderState.DONE, SenderState.REFUSED, SenderState.ENDED)


@dataclass(frozen=True)
class AbortAsked:
    """By the receiver, on the stream or by the unary call."""


@dataclass(frozen=True)
class ReceiverLost:
    """The stream or the whole connection broke: nobody listens any more."""


@dataclass(frozen=True)
class Stopped:
    """This node gives the room up. cause: where it is counted by one."""

    reason: str
    cause: m.LossCause | None = None


@dataclass(frozen=True)
class GatewayCame:
    """The gateway's call for this room is here too, with the same prompt."""


@dataclass(frozen=True)
class GatewayMissing:
    """It did not come in time."""


@dataclass(frozen=True)
class PullHeard:
    """What the receiver says of the pull that it sends."""

    message: pb.PullDone | pb.PullFailed


@dataclass(frozen=True)
class _Drained:
    drain: Drain


RoomEvent = (
    m.PrefillQueued
    | m.PrefillAccepted
    | m.PrefillRefused
    | m.PrefillToken
    | m.Grant
    | m.PullWanted
    | PullHeard
    | RoomEnd
    | AbortAsked
    | ReceiverLost
    | Stopped
    | GatewayCame
    | GatewayMissing
    | _Drained
)


BeginPull = Callable[[m.PullGrant, str, Say], IncomingPull | None]


class OutgoingHandover:
    def __init__(
        self,
        reserve: m.PrefillReserve,
        connection: str,
        post: Callable[[m.Inbox], None],
        sender: Sender,
        progress_seconds: float,
        begin_pull: BeginPull,
        request_id: str = "",
        *,
        deadlines: SenderDeadlines | None = None,
        awaits_gateway: bool = False,
    ) -> None:
        """progress_seconds: between two repetitions of Queued, and between two looks at the
        deadlines. begin_pull: fetches what the ticket offers; outlives the room. request_id: as the
        receiver's clients know it; empty where it told none. awaits_gateway: nothing is computed
        before GatewayCame."""
        self.named: dict[str, str | int] = {"request_id": request_id, "room": reserve.ticket.room}
        """What its log lines are found by."""
        self.room = reserve.ticket.room
        self.generation = reserve.ticket.generation
        self.connection = connection
        self.endpoint_failed = False
        """Another room of this connection would fail too."""
        self.outgoing: asyncio.Queue[pb.SenderMessage | None] = asyncio.Queue()
        """What the stream writes; None ends it."""
        self.ended: asyncio.Future[Drain] = asyncio.get_running_loop().create_future()
        self._reserve = reserve
        self._awaits_gateway = awaits_gateway
        self._post = post
        self._sender = sender
        self._progress_seconds = progress_seconds
        self._begin_pull = begin_pull
        self._pull: IncomingPull | None = None
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[RoomEvent] = asyncio.Queue()
        self._machine = sender_machine()
        self._phases = PhaseClock()
        self._position = 0
        self._report: SendReport | None = None
        self._pulled: m.PullReport | None = None
        self._failure: str | None = None
        self._given_up: m.LossCause | None = None
        self._deadlines = deadlines or SenderDeadlines()
        self._moves = ProgressWatch(progress_seconds)

    @property
    def prompt(self) -> m.Tokens:
        return self._reserve.prompt

    def put(self, event: RoomEvent) -> None:
        """Events of a room that is over are dropped with it."""
        self._events.put_nowait(event)

    def pulls_not_begun(self) -> list[m.PullGrant]:
        """What the engine wanted too late for this room to ask; call after run()."""
        events = [self._events.get_nowait() for _ in range(self._events.qsize())]
        return [event.grant for event in events if isinstance(event, m.PullWanted)]

    async def run(self) -> None:
        """From Reserve to the end."""
        try:
            drain = await self._live()
        except Exception:
            # A defect must still drain the room before its engine lets go.
            log.exception("room %d broke", self.room, extra=self.named)
            drain = await self._drain_at_last()
        if self._pull is not None:
            self._pull.lose("its room is over")
        self._post(m.PrefillEnd(self.room, self._given_up))
        self.outgoing.put_nowait(None)
        self.ended.set_result(drain)

    async def _live(self) -> Drain:
        self._machine.apply(SenderEvent.ARRIVE)
        if not self._awaits_gateway:
            # A Reserve that brings the prompt is the gateway's call and the receiver's in one.
            self._met()
        drain = Drain.DRAINED
        while self._machine.state not in _OVER:
            event = await self._next()
            if isinstance(event, _Drained | RoomBroke):
                drain = event.drain
            self._take(event)
        return drain

    async def _next(self) -> RoomEvent:
        """The next event, or what it means that nothing moves."""
        while True:
            if (overdue := self._overdue()) is not None:
                return overdue
            try:
                return await asyncio.wait_for(self._events.get(), self._progress_seconds)
            except TimeoutError:
                if self._machine.state is SenderState.QUEUED:
                    self._say(wire.queued(self._position))

    def _overdue(self) -> Stopped | _Drained | None:
        state = self._machine.state
        pulled = None if self._pull is None else self._pull.progress
        allowed = self._deadlines.of(state)
        if self._moves.still((state, self._sender.progress(self.room), pulled)) <= allowed:
            return None
        if state is SenderState.DRAINING:
            return _Drained(Drain.FORCED)
        waited = state is SenderState.QUEUED
        cause = m.LossCause.QUEUE_TIMEOUT if waited else m.LossCause.STALLED
        return Stopped(f"the prefill node gives up: {state.value}, for {allowed} s", cause)

    async def _drain_at_last(self) -> Drain:
        drained = asyncio.wrap_future(self._sender.abort(self.room))
        try:
            return await asyncio.wait_for(asyncio.shield(drained), self._deadlines.draining)
        except TimeoutError:
            return Drain.FORCED

    def _take(self, event: RoomEvent) -> None:
        try:
            self._move(event)
        except IllegalTransition as error:
            log.warning("room %d: %s", self.room, error, extra=self.named)
            self._stop(str(error))
        except Exception as error:
            # A defect in one room must still drain it and free what it holds.
            log.exception("room %d broke", self.room, extra=self.named)
            self._stop(f"internal error: {error!r}")

    def _move(self, event: RoomEvent) -> None:
        match event:
            case m.PrefillQueued(position=position):
                self._position = position
                if self._machine.state is SenderState.QUEUED:
                    self._say(wire.queued(position))
            case m.PrefillAccepted():
                if self._machine.apply(SenderEvent.ACCEPT) is SenderState.ACCEPTED:
                    self._phases.mark(Phase.ACCEPTED)
                    self._say(wire.accepted())
            case m.PullWanted(grant=grant):
                # Where the room drains by now the pull is lost by run() at once.
                self._pull = self._begin_pull(grant, self.connection, self._say)
            case PullHeard(message=message):
                if self._pull is not None:
                    self._pull.put(message)
            case m.PrefillRefused(error=error):
                self._refuse(error)
            case m.Grant():
                self._granted(event)
            case m.PrefillToken():
                self._produced(event)
            case RoomSent(report=report):
                self._report = report
                if self._machine.apply(SenderEvent.FLUSHED) is SenderState.DONE:
                    self._say_done(report)
            case RoomBroke(reason=reason, drain=drain):
                self.endpoint_failed = event.endpoint_failed
                self._failure = self._failure or reason
                self._machine.apply(SenderEvent.STOP)
                self._drained(drain)
            case GatewayCame():
                self._met()
            case GatewayMissing():
                if self._machine.allows(SenderEvent.EXPIRE):
                    self._machine.apply(SenderEvent.EXPIRE)
                    self._say(wire.failed("the gateway's call did not come", Drain.DRAINED))
            case AbortAsked() | ReceiverLost():
                self._stop(None)
            case Stopped(reason=reason, cause=cause):
                self._given_up = self._given_up or cause
                self._stop(reason)
            case _Drained(drain=drain):
                self._drained(drain)

    def _met(self) -> None:
        if self._machine.apply(SenderEvent.MEET) is SenderState.QUEUED:
            self._post(self._reserve)

    def _refuse(self, error: m.RequestError) -> None:
        if self._machine.state is SenderState.QUEUED:
            self._machine.apply(SenderEvent.REFUSE)
            if error.kind is m.ErrorKind.QUEUE_TIMEOUT:
                self._given_up = m.LossCause.QUEUE_TIMEOUT
            self._say(wire.refused(error))
        elif self._machine.state is not SenderState.DRAINING:
            # The forward broke after the grant: windows may be in flight.
            self._stop(error.message)

    def _granted(self, grant: m.Grant) -> None:
        if self._machine.apply(SenderEvent.GRANT) is not SenderState.STREAMING:
            return
        reach(Place.SENDER_ON_GRANT)
        if grant.generation != self.generation:
            self._stop(f"grant is of generation {grant.generation}, room of {self.generation}")
            return
        try:
            self._sender.open(
                self.room,
                self.generation,
                self.connection,
                Destination(grant.first_page, grant.pages, grant.slot),
                self._on_end,
            )
        except TransferError as error:
            self._stop(str(error))
            return
        self._phases.mark(Phase.GRANTED)
        self._post(m.PrefillStart(grant))

    def _produced(self, token: m.PrefillToken) -> None:
        state = self._machine.apply(SenderEvent.TOKEN)
        if state is SenderState.DRAINING:
            return
        self._phases.mark(Phase.READY)
        self._pulled = token.pulled
        self._say(wire.ready(self.generation, token, self._sender.tail_seconds(self.room)))
        if state is SenderState.DONE:
            assert self._report is not None
            self._say_done(self._report)

    def _say_done(self, report: SendReport) -> None:
        self._phases.mark(Phase.DONE)
        track = sender_track(report, self._phases)
        pull = None if self._pulled is None else self._pulled.timeline
        self._say(wire.done(self.generation, report, track, pull))

    def _stop(self, failure: str | None) -> None:
        """Begin to drain; `failure` is this side's reason, None where the receiver wanted it."""
        first = self._machine.state is not SenderState.DRAINING
        self._failure = self._failure or failure
        if self._machine.apply(SenderEvent.STOP) is SenderState.ENDED:
            # Parked: there is nothing to drain.
            self._tell_end(Drain.DRAINED)
        elif first:
            self._sender.abort(self.room).add_done_callback(self._on_drained)

    def _drained(self, drain: Drain) -> None:
        self._machine.apply(SenderEvent.DRAINED)
        self._tell_end(drain)

    def _tell_end(self, drain: Drain) -> None:
        if self._failure is None:
            self._say(wire.aborted(drain))
        else:
            self._say(wire.failed(self._failure, drain))

    def _say(self, message: pb.SenderMessage) -> None:
        self.outgoing.put_nowait(message)

    def _on_end(self, end: RoomEnd) -> None:
        self._loop.call_soon_threadsafe(self.put, end)

    def _on_drained(self, drained: "Future[Drain]") -> None:
        self._loop.call_soon_threadsafe(self.put, _Drained(drained.result()))
