"""A room from which windows leave for a peer's pages and slot: the machine that hand-overs and
pulls share.

Owns the room's states, its events, and its stop: what is posted drains before the room is over.
Knows no engine and no stream: what one direction adds is its SendingSide. Thread rule: the event
loop; the sender's callbacks come in through call_soon_threadsafe.
Invariant: run() returns after the sender drained, or gave up draining; the side sends at most one
end, by send_done or by send_end.
"""

import asyncio
import logging
from collections.abc import Hashable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from tasuki.transfer.liveness.progress_watch import ProgressWatch
from tasuki.transfer.protocol.handover_states import (
    IllegalTransition,
    Machine,
    SenderEvent,
    SenderState,
)
from tasuki.transfer.sending.outgoing_room import RoomBroke, RoomEnd, RoomSent
from tasuki.transfer.sending.sender import Sender
from tasuki.transfer.timeline import Phase, PhaseClock, SenderTrack, sender_track
from tasuki.transfer.windows.destination import Destination
from tasuki.transfer.windows.send_report import Drain, SendReport

from .room_deadlines import PullSenderDeadlines, SenderDeadlines
from .room_inbox import RoomInbox

log = logging.getLogger(__name__)

_OVER = (SenderState.DONE, SenderState.REFUSED, SenderState.ENDED)


@dataclass(frozen=True)
class Drained:
    drain: Drain


Event = TypeVar("Event")


class SendingSide(Protocol[Event]):
    """What one direction adds. What its methods raise stops the room."""

    def begin(self) -> None:
        """The room's first move."""

    def take(self, event: Event) -> None:
        """One of the direction's own events."""

    def overdue(self) -> Event | None:
        """What it means that nothing moves; None while that is allowed. Called at each look."""

    def send_done(self, report: SendReport, track: SenderTrack) -> None:
        """Every window is flushed: send the final status."""

    def send_end(self, failure: str | None, drain: Drain) -> None:
        """Over without a result. failure: this node's reason; None where the receiver wanted it."""


class SendingRoom(Generic[Event]):
    def __init__(
        self,
        room: int,
        generation: int,
        connection: str,
        machine: Machine[SenderState, SenderEvent],
        deadlines: SenderDeadlines | PullSenderDeadlines,
        look: float,
        sender: Sender,
        side: SendingSide[Event],
        name: str,
        named: Mapping[str, str | int],
    ) -> None:
        """look: seconds between two looks at the deadlines. name, named: what log lines begin with
        and are found by."""
        self.room = room
        self.generation = generation
        self.connection = connection
        self.machine = machine
        self.endpoint_failed = False
        """Another room of this connection would fail too."""
        self.phases = PhaseClock()
        self.inbox: RoomInbox[Event | RoomEnd | Drained] = RoomInbox(look)
        self._deadlines = deadlines
        self._watch = ProgressWatch(look)
        self._sender = sender
        self._side = side
        self._name = name
        self._named = dict(named)
        self._loop = asyncio.get_running_loop()
        self._report: SendReport | None = None
        self._failure: str | None = None
        self._drain = Drain.DRAINED

    @property
    def is_over(self) -> bool:
        return self.machine.state in _OVER

    @property
    def progress(self) -> int:
        """Grows as it goes out."""
        return self._sender.progress(self.room)

    async def run(self) -> Drain:
        """From the first move to the end: whether what was posted has ended."""
        try:
            self._side.begin()
            while not self.is_over:
                self._take(await self.inbox.next(self._overdue))
        except Exception as error:
            # A defect must still drain the room before its engine lets go.
            log.exception("%s broke", self._name, extra=self._named)
            self._drain = await self._drain_at_last()
            self._side.send_end(f"internal error: {error!r}", self._drain)
        return self._drain

    def stood_still(self, *moves: Hashable) -> float | None:
        """The seconds that the state allows, where neither it, nor what was sent, nor what is given
        has changed for longer; else None."""
        state = self.machine.state
        allowed = self._deadlines.of(state)
        return allowed if self._watch.still((state, self.progress, *moves)) > allowed else None

    def open(self, destination: Destination) -> None:
        """Windows may leave. Raises TransferError where the receiver's ids cannot be written."""
        self._sender.open(self.room, self.generation, self.connection, destination, self._on_end)

    def finish(self) -> None:
        """In DONE, where all that goes before the final status has gone."""
        assert self._report is not None
        self.phases.mark(Phase.DONE)
        self._side.send_done(self._report, sender_track(self._report, self.phases))

    def stop(self, failure: str | None) -> None:
        """Begin to drain; idempotent. failure: this side's reason, None where the receiver wanted
        it. The first reason is kept."""
        before = self.machine.state
        self._failure = self._failure or failure
        after = self.machine.apply(SenderEvent.STOP)
        if after is before:
            return
        if after is SenderState.ENDED:
            # Nothing was begun, so there is nothing to drain.
            self._side.send_end(self._failure, Drain.DRAINED)
        else:
            self._sender.abort(self.room).add_done_callback(self._on_drained)

    def _overdue(self) -> Event | Drained | None:
        overdue = self._side.overdue()
        if overdue is not None and self.machine.state is SenderState.DRAINING:
            return Drained(Drain.FORCED)
        return overdue

    def _take(self, event: Event | RoomEnd | Drained) -> None:
        try:
            match event:
                case RoomSent(report=report):
                    self._report = report
                    if self.machine.apply(SenderEvent.FLUSHED) is SenderState.DONE:
                        self.finish()
                case RoomBroke(reason=reason, drain=drain):
                    self.endpoint_failed = event.endpoint_failed
                    self._failure = self._failure or reason
                    self.machine.apply(SenderEvent.STOP)
                    self._drained(drain)
                case Drained(drain=drain):
                    self._drained(drain)
                case _:
                    self._side.take(event)
        except IllegalTransition as error:
            log.warning("%s: %s", self._name, error, extra=self._named)
            self.stop(str(error))
        except Exception as error:
            # A defect in one room must still drain it and free what it holds.
            log.exception("%s broke", self._name, extra=self._named)
            self.stop(f"internal error: {error!r}")

    def _drained(self, drain: Drain) -> None:
        self._drain = drain
        self.machine.apply(SenderEvent.DRAINED)
        self._side.send_end(self._failure, drain)

    async def _drain_at_last(self) -> Drain:
        drained = asyncio.wrap_future(self._sender.abort(self.room))
        try:
            return await asyncio.wait_for(asyncio.shield(drained), self._deadlines.draining)
        except TimeoutError:
            return Drain.FORCED

    def _on_end(self, end: RoomEnd) -> None:
        self._loop.call_soon_threadsafe(self.inbox.put, end)

    def _on_drained(self, drained: "Future[Drain]") -> None:
        self._loop.call_soon_threadsafe(self.inbox.put, Drained(drained.result()))
