"""One pull on the decode node, where the return path is sent: between a room's stream, the engine
and the sender.

Owns the pull's machine. Lives on when its room is over, until it has drained. Knows no gRPC calls:
what it says goes to the room, and how it ended also to the connection, whose renewals carry it.
Thread rule: the event loop only; the sender's callbacks come in through call_soon_threadsafe.
Invariants: the engine hears PullEnd exactly once, after the sender drained (or gave up draining);
the other side hears of the drain on the connection exactly once, whatever was said on the stream.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from tasuki.engine import messages as m
from tasuki.proto import handover_pb2 as pb
from tasuki.transfer.errors import TransferError
from tasuki.transfer.liveness.progress_watch import ProgressWatch
from tasuki.transfer.protocol.handover_states import IllegalTransition
from tasuki.transfer.protocol.pull_states import (
    PullSenderEvent,
    PullSenderState,
    pull_sender_machine,
)
from tasuki.transfer.rooms.room_deadlines import PullSenderDeadlines
from tasuki.transfer.sending.outgoing_room import RoomBroke, RoomEnd, RoomSent
from tasuki.transfer.sending.sender import Sender
from tasuki.transfer.timeline import Phase, PhaseClock, sender_track
from tasuki.transfer.windows.destination import Destination
from tasuki.transfer.windows.send_report import Drain
from tasuki.transfer.windows.window import ForwardPlan

from . import handover_messages as wire
from .prefill_link import PrefillConnection

log = logging.getLogger(__name__)

_OVER = (PullSenderState.DONE, PullSenderState.REFUSED, PullSenderState.ENDED)

Say = Callable[[pb.ReceiverMessage], None]
"""On the room's stream, in order, as long as the room lives; dropped after that."""


@dataclass(frozen=True)
class _Stopped:
    reason: str


@dataclass(frozen=True)
class _Drained:
    drain: Drain


PullEvent = m.PullPinned | m.PullRefused | RoomEnd | _Stopped | _Drained


class OutgoingPull:
    def __init__(
        self,
        grant: m.PullGrant,
        connection: PrefillConnection,
        post: Callable[[m.Inbox], None],
        sender: Sender,
        say: Say,
        deadlines: PullSenderDeadlines,
    ) -> None:
        self.room = grant.room
        self.generation = grant.generation
        self.connection = connection
        self._grant = grant
        self._post = post
        self._sender = sender
        self._say = say
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[PullEvent] = asyncio.Queue()
        self._deadlines = deadlines
        self._moves = ProgressWatch(deadlines.look)
        self._machine = pull_sender_machine()
        self._phases = PhaseClock()
        self._drain = Drain.DRAINED
        self._reason = ""

    @property
    def progress(self) -> int | None:
        """Grows as it goes out; None once it is over."""
        return None if self._machine.state in _OVER else self._sender.progress(self.room)

    def put(self, event: m.PullPinned | m.PullRefused) -> None:
        """What the engine says about it."""
        self._events.put_nowait(event)

    def stop(self, reason: str) -> None:
        """Idempotent; without effect where it is over."""
        self._events.put_nowait(_Stopped(reason))

    async def run(self) -> None:
        """From the ask to the drain."""
        grant = self._grant
        self._machine.apply(PullSenderEvent.ASK)
        self._phases.mark(Phase.GRANTED)
        self._post(m.PullAsked(grant.room, grant.tokens, grant.first_page))
        try:
            while self._machine.state not in _OVER:
                self._take(await self._next())
        except Exception as error:
            # A defect must still drain the pull before its engine lets go.
            log.exception("pull of room %d broke", self.room)
            self._drain = await self._drain_at_last()
            self._fail(f"internal error: {error!r}")
        self._post(m.PullEnd(self.room))
        self.connection.drained(self.room, self.generation, self._drain)

    async def _next(self) -> PullEvent:
        """The next event, or what it means that nothing moves."""
        while True:
            state = self._machine.state
            allowed = self._deadlines.of(state)
            if self._moves.still((state, self.progress)) > allowed:
                if state is PullSenderState.DRAINING:
                    return _Drained(Drain.FORCED)
                return _Stopped(f"nothing moved for {allowed} s: {state.value}")
            with contextlib.suppress(TimeoutError):
                return await asyncio.wait_for(self._events.get(), self._deadlines.look)

    async def _drain_at_last(self) -> Drain:
        drained = asyncio.wrap_future(self._sender.abort(self.room))
        try:
            return await asyncio.wait_for(asyncio.shield(drained), self._deadlines.draining)
        except TimeoutError:
            return Drain.FORCED

    def _take(self, event: PullEvent) -> None:
        try:
            self._move(event)
        except IllegalTransition as error:
            log.warning("pull of room %d: %s", self.room, error)
            self._stop(str(error))
        except Exception as error:
            # A defect in one pull must still drain it and free what it pins.
            log.exception("pull of room %d broke", self.room)
            self._stop(f"internal error: {error!r}")

    def _move(self, event: PullEvent) -> None:
        match event:
            case m.PullPinned(source=source):
                self._pinned(source)
            case m.PullRefused(reason=reason):
                self._refuse(reason)
            case RoomSent(report=report):
                if self._machine.apply(PullSenderEvent.FLUSHED) is PullSenderState.DONE:
                    self._phases.mark(Phase.DONE)
                    track = sender_track(report, self._phases)
                    self._say(wire.pull_done(self.generation, report, track))
            case RoomBroke(reason=reason, drain=drain):
                self._reason = self._reason or reason
                self._machine.apply(PullSenderEvent.STOP)
                self._drained(drain)
            case _Stopped(reason=reason):
                self._stop(reason)
            case _Drained(drain=drain):
                self._drained(drain)

    def _pinned(self, source: m.PullSource) -> None:
        if self._machine.state is not PullSenderState.PINNING:
            self._machine.apply(PullSenderEvent.PINNED)
            return
        grant = self._grant
        target = Destination(grant.first_page, grant.pages, grant.slot)
        try:
            self._sender.open(self.room, self.generation, self.connection.id, target, self._on_end)
        except TransferError as error:
            self._refuse(str(error))
            return
        self._machine.apply(PullSenderEvent.PINNED)
        self._phases.mark(Phase.ACCEPTED)
        plan = ForwardPlan.long_finished(grant.first_page, source.pages, source.slot)
        self._sender.plan_forward(self.room, plan)

    def _refuse(self, reason: str) -> None:
        if self._machine.apply(PullSenderEvent.REFUSE) is PullSenderState.REFUSED:
            self._fail(reason)

    def _stop(self, reason: str) -> None:
        first = self._machine.state in (PullSenderState.PINNING, PullSenderState.STREAMING)
        self._machine.apply(PullSenderEvent.STOP)
        if first:
            self._reason = reason
            self._sender.abort(self.room).add_done_callback(self._on_drained)

    def _drained(self, drain: Drain) -> None:
        self._drain = drain
        if self._machine.apply(PullSenderEvent.DRAINED) is PullSenderState.ENDED:
            self._fail(self._reason)

    def _fail(self, reason: str) -> None:
        log.info("pull of room %d: %s", self.room, reason)
        self._say(wire.pull_failed(self.generation, reason, self._drain))

    def _on_end(self, end: RoomEnd) -> None:
        self._loop.call_soon_threadsafe(self._events.put_nowait, end)

    def _on_drained(self, drained: "Future[Drain]") -> None:
        self._loop.call_soon_threadsafe(self._events.put_nowait, _Drained(drained.result()))
