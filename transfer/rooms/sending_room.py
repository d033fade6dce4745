"""A room from which windows leave for a peer's pages and slot: the machine that hand-overs and
pulls share.

Owns the room's states, its events, and its stop: what is posted drains before the room is over.
Knows no engine and no stream: those are a subclass's. Thread rule: the event loop; the sender's
callbacks come in through call_soon_threadsafe.
Invariant: over() is called after the sender drained, or gave up draining; at most one end is sent,
by send_done or by send_end.
"""

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass

from tasuki.transfer.protocol.handover_states import Machine, SenderEvent, SenderState
from tasuki.transfer.reports import Drain, Phase, SenderTrack, SendReport, sender_track
from tasuki.transfer.sending.outgoing_room import RoomBroke, RoomEnd, RoomSent
from tasuki.transfer.sending.sender import Sender
from tasuki.transfer.windows.window import Destination

from .room import Event, Room, Stalled, Stopped
from .room_deadlines import PullSenderDeadlines, SenderDeadlines

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Drained:
    drain: Drain


class SendingRoom(Room[SenderState, SenderEvent, Event | RoomEnd | Drained | Stopped]):
    OVER = frozenset({SenderState.DONE, SenderState.REFUSED, SenderState.ENDED})

    def __init__(
        self,
        room: int,
        generation: int,
        connection: str,
        machine: Machine[SenderState, SenderEvent],
        deadlines: SenderDeadlines | PullSenderDeadlines,
        look: float,
        sender: Sender,
        name: str,
        named: Mapping[str, str | int],
    ) -> None:
        """connection: the peer, as the sender calls it. The rest as in Room."""
        super().__init__(room, generation, machine, deadlines, look, name, named)
        self.connection = connection
        self.endpoint_failed = False
        """Another room of this connection would fail too."""
        self._draining_seconds = deadlines.draining
        self._sender = sender
        self._loop = asyncio.get_running_loop()
        self._report: SendReport | None = None
        self._failure: str | None = None
        self._drain = Drain.DRAINED

    @property
    def progress(self) -> int | None:
        return None if self.is_over else self._sender.progress(self.room)

    @abstractmethod
    def begin(self) -> None:
        """The room's first move. What it raises stops the room."""

    @abstractmethod
    def take(self, event: Event | Stalled) -> None:
        """One of the subclass's own events, or that nothing moves. What it raises stops the
        room."""

    @abstractmethod
    def send_done(self, report: SendReport, track: SenderTrack) -> None:
        """Every window is flushed: send the final status."""

    @abstractmethod
    def send_end(self, failure: str | None, drain: Drain) -> None:
        """Over without a result. failure: this node's reason; None where the receiver wanted it."""

    @abstractmethod
    def over(self, drain: Drain) -> None:
        """The room's end, once: answer the engine. drain: whether what was posted has ended."""

    async def run(self) -> None:
        """From the first move to the end."""
        try:
            self.begin()
            await self._live()
        except Exception as error:
            # A defect must still drain the room before its engine lets go.
            log.exception("%s broke", self.name, extra=self.named)
            self._drain = await self._drain_at_last()
            self.send_end(f"internal error: {error!r}", self._drain)
        self.over(self._drain)

    def open(self, destination: Destination) -> None:
        """Windows may leave. Raises TransferError where the receiver's ids cannot be written."""
        self._sender.open(self.room, self.generation, self.connection, destination, self._on_end)

    def finish(self) -> None:
        """In DONE, where all that goes before the final status has gone."""
        assert self._report is not None
        self.phases.mark(Phase.DONE)
        self.send_done(self._report, sender_track(self._report, self.phases))

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
            self.send_end(self._failure, Drain.DRAINED)
        else:
            self._sender.abort(self.room, self.connection).add_done_callback(self._on_drained)

    def _move(self, event: Event | RoomEnd | Drained | Stopped | Stalled) -> None:
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
            case Stopped(reason=reason):
                self.stop(reason)
            case Stalled(state=SenderState.DRAINING):
                self._drained(Drain.FORCED)
            case _:
                self.take(event)

    def _contradicted(self, error: Exception) -> None:
        log.warning("%s: %s", self.name, error, extra=self.named)
        self.stop(str(error))

    def _broke(self, error: Exception) -> None:
        """A defect in one room must still drain it and free what it holds."""
        log.error("%s broke", self.name, exc_info=error, extra=self.named)
        self.stop(f"internal error: {error!r}")

    def _drained(self, drain: Drain) -> None:
        self._drain = drain
        self.machine.apply(SenderEvent.DRAINED)
        self.send_end(self._failure, drain)

    async def _drain_at_last(self) -> Drain:
        drained = asyncio.wrap_future(self._sender.abort(self.room, self.connection))
        try:
            return await asyncio.wait_for(asyncio.shield(drained), self._draining_seconds)
        except TimeoutError:
            return Drain.FORCED

    def _on_end(self, end: RoomEnd) -> None:
        self._loop.call_soon_threadsafe(self.put, end)

    def _on_drained(self, drained: "Future[Drain]") -> None:
        self._loop.call_soon_threadsafe(self.put, Drained(drained.result()))
