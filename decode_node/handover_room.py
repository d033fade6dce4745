"""One room on the decode node: between the prefill node's stream, the engine and the receiver.

Owns the room's machine, its stream and its tasks. Thread rule: the event loop; digests are compared
in a thread.
Invariants: every room that was granted ends in exactly one of RemoteDone, or HandoverLost (not
where the engine cancelled) followed by WriterFenced; WriterFenced is said only on one of the
fence's three reasons. Nothing is awaited between a room and its next event, and what breaks in any
of its tasks ends it.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from tasuki.engine import messages as m
from tasuki.proto import handover_pb2 as pb
from tasuki.transfer import peer_values as told
from tasuki.transfer.errors import DigestMismatch, PeerInvalid, TransferError
from tasuki.transfer.failpoints import Place, reach
from tasuki.transfer.fencing.evidence import FenceReason
from tasuki.transfer.liveness.progress_watch import ProgressWatch
from tasuki.transfer.protocol.handover_states import (
    IllegalTransition,
    ReceiverEvent,
    ReceiverState,
    receiver_machine,
)
from tasuki.transfer.protocol.messages import drain_from_wire, windows_from_wire
from tasuki.transfer.receiving.receiver import Receiver
from tasuki.transfer.rooms.room_tasks import RoomTasks
from tasuki.transfer.timeline import Phase, PhaseClock
from tasuki.transfer.windows.destination import Destination
from tasuki.transfer.windows.send_report import Drain

from . import handover_messages as wire
from .drain_request import DrainRequest
from .handover_settings import HandoverSettings
from .prefill_link import PrefillConnection, PrefillLink
from .pull_sender import OutgoingPull, Say
from .room_stream import RoomStream, StreamBroke

log = logging.getLogger(__name__)

Trail: TypeAlias = tuple[tuple[str, str], ...]

_FENCE_AGAIN_SECONDS = 1.0

_LIVE = (
    ReceiverState.NEW,
    ReceiverState.RESERVED,
    ReceiverState.ACCEPTED,
    ReceiverState.GRANTED,
    ReceiverState.READY,
    ReceiverState.VERIFYING,
)


@dataclass(frozen=True)
class _Opened:
    """The room begins: the first event of every one."""


@dataclass(frozen=True)
class _Say:
    """A pull's word for the stream."""

    message: pb.ReceiverMessage


@dataclass(frozen=True)
class _Verified:
    failure: Exception | None


@dataclass(frozen=True)
class _Stalled:
    """It stood still for longer than its state may."""

    reason: str
    cause: m.LossCause


@dataclass(frozen=True)
class _Broke:
    """One of the room's tasks raised what nobody foresaw."""

    error: Exception


RoomEvent = (
    pb.SenderMessage
    | m.HandoverGranted
    | m.HandoverDeclined
    | m.HandoverCancelled
    | _Opened
    | StreamBroke
    | _Say
    | _Verified
    | _Stalled
    | _Broke
)


BeginPull: TypeAlias = Callable[[m.PullGrant, PrefillConnection, Say], OutgoingPull]


class IncomingHandover:
    def __init__(
        self,
        wanted: m.HandoverWanted,
        link: PrefillLink,
        connection: PrefillConnection,
        post: Callable[[m.Inbox], None],
        receiver: Receiver,
        retry_seconds: float,
        settings: HandoverSettings,
        sever: Callable[[FenceReason], Awaitable[None]],
        begin_pull: BeginPull,
        trail: Trail = (),
    ) -> None:
        """begin_pull: serves what the prefill node pulls of this room; outlives it. trail: gRPC
        metadata that tells the prefill node whose room this is."""
        self.room = wanted.ticket.room
        self.request_id = wanted.request_id
        self.generation = wanted.ticket.generation
        self.connection = connection
        self._wanted = wanted
        self._post = post
        self._receiver = receiver
        self._settings = settings
        self._events: asyncio.Queue[RoomEvent] = asyncio.Queue()
        self.put(_Opened())
        self._machine = receiver_machine()
        self._phases = PhaseClock()
        self._told_done: pb.Done | None = None
        self._position: int | None = None
        """In the prefill node's queue."""
        self._moves = ProgressWatch(settings.deadlines.look)
        self._waits = ProgressWatch(settings.deadlines.look)
        self._landed = 0
        self._drain_request = DrainRequest(self.room, self.generation, link, connection, settings)
        self._fence = self._drain_request.fence(retry_seconds, sever)
        self._begin_pull = begin_pull
        self._pull: OutgoingPull | None = None
        self._tasks = RoomTasks(f"room-{self.room}", lambda error: self.put(_Broke(error)))
        self._stream = RoomStream(
            self.room,
            lambda: connection.stub.Transfer(metadata=trail),
            self.put,
            settings.write,
        )

    def put(self, event: RoomEvent) -> None:
        self._events.put_nowait(event)

    def unread(self) -> list[m.HandoverGranted | m.HandoverCancelled]:
        """What the engine said too late for this room to take; call after run()."""
        events = [self._events.get_nowait() for _ in range(self._events.qsize())]
        return [e for e in events if isinstance(e, m.HandoverGranted | m.HandoverCancelled)]

    async def run(self) -> None:
        """From Reserve to the end, the fence included."""
        self._tasks.start(self._stream.run)
        self._tasks.start(self._watch_connection)
        try:
            await self._live()
            self._receiver.forget(self.room)
            if self._machine.state is ReceiverState.QUARANTINED:
                await self._hold_fence()
        finally:
            if self._pull is not None:
                self._pull.stop("its room is over")
            self._receiver.forget(self.room)
            await self._tasks.end()

    async def _live(self) -> None:
        """Until the engine has its answer."""
        try:
            while self._machine.state in _LIVE:
                self._take(await self._next())
        except Exception as error:
            self._broke(error)

    async def _hold_fence(self) -> None:
        while True:
            try:
                await self._fence.hold(
                    lambda: self._drain_request.until_answered(self._fence, self._ask_to_drain)
                )
            except Exception:
                # What was granted stays quarantined until a fence holds; so it is tried again.
                log.exception("room %d: its fence broke", self.room)
                await asyncio.sleep(_FENCE_AGAIN_SECONDS)
            else:
                self._machine.apply(ReceiverEvent.FENCED)
                self._post(m.WriterFenced(self.room))
                return

    async def _next(self) -> RoomEvent:
        """The next event, or what it means that nothing moves."""
        while True:
            if (overdue := self._overdue()) is not None:
                return overdue
            with contextlib.suppress(TimeoutError):
                return await asyncio.wait_for(self._events.get(), self._settings.deadlines.look)

    def _overdue(self) -> _Stalled | None:
        deadlines, state = self._settings.deadlines, self._machine.state
        pulled = None if self._pull is None else self._pull.progress
        landed = self._receiver.windows_landed(self.room)
        self.connection.landed += max(0, landed - self._landed)
        self._landed = landed
        # Granted, and none of it has come: it waits for those that the sender computes before it.
        behind = state is ReceiverState.GRANTED and not landed
        waits = behind or state is ReceiverState.RESERVED
        waited = self._waits.still((state if waits else None, pulled))
        if waits and waited > deadlines.queue:
            reason = f"its prompt was not begun for {deadlines.queue} s: {state.value}"
            return _Stalled(reason, m.LossCause.QUEUE_TIMEOUT)
        allowed, others = deadlines.of(state), self.connection.landed if behind else 0
        if self._moves.still((state, self._position, pulled, landed, others)) <= allowed:
            return None
        if state is ReceiverState.ACCEPTED:
            reason = f"no room to receive it came free here for {allowed} s"
            return _Stalled(reason, m.LossCause.NO_ROOM)
        return _Stalled(f"nothing moved for {allowed} s: {state.value}", m.LossCause.STALLED)

    async def _watch_connection(self) -> None:
        await self.connection.lost.wait()
        self.put(StreamBroke(f"prefill node {self.connection.node.name} is lost"))

    def _take(self, event: RoomEvent) -> None:
        try:
            match event:
                case _Opened():
                    self._reserve()
                case pb.SenderMessage():
                    self._heard(event)
                case m.HandoverGranted(grant=grant):
                    self._grant(grant)
                case m.HandoverDeclined():
                    self._lose("no room to receive it now", m.LossCause.NO_ROOM)
                case m.HandoverCancelled():
                    self._machine.apply(ReceiverEvent.LOSE)
                case StreamBroke(reason=reason):
                    # After Done nothing more comes, and nothing more is needed.
                    if self._machine.state is not ReceiverState.VERIFYING:
                        self._lose(reason)
                case _Stalled(reason=reason, cause=cause):
                    self._lose(reason, cause)
                case _Say(message=message):
                    self._stream.say(message)
                case _Verified(failure=failure):
                    self._verified(failure)
                case _Broke(error=error):
                    self._broke(error)
        except IllegalTransition as error:
            log.warning("room %d: %s", self.room, error)
            self._lose(str(error), m.LossCause.PROTOCOL)
        except PeerInvalid as error:
            self._lose(str(error), m.LossCause.PROTOCOL)
        except Exception as error:
            self._broke(error)

    def _broke(self, error: Exception) -> None:
        """A defect in one room must still end it and fence what it granted."""
        log.error("room %d broke", self.room, exc_info=error)
        if self._machine.state in _LIVE:
            self._lose(f"internal error: {error!r}", m.LossCause.PROTOCOL)

    def _reserve(self) -> None:
        self._machine.apply(ReceiverEvent.RESERVE)
        reach(Place.RECEIVER_BEFORE_RESERVE)
        self._stream.say(wire.reserve(self.connection.id, self._wanted))

    def _heard(self, message: pb.SenderMessage) -> None:
        match message.WhichOneof("message"):
            case "queued":
                self._machine.apply(ReceiverEvent.QUEUED)
                self._position = message.queued.position
            case "accepted":
                self._machine.apply(ReceiverEvent.ACCEPTED)
                reach(Place.RECEIVER_ON_ACCEPTED)
                self._phases.mark(Phase.ACCEPTED)
                self._post(m.GrantWanted(self.room))
            case "refused":
                self._machine.apply(ReceiverEvent.REFUSED)
                self._post(wire.refused_from_wire(self.room, message.refused))
            case "pull":
                self._serve_pull(message.pull)
            case "stop_pull":
                if self._pull is not None:
                    self._pull.stop("the prefill node does not wait any longer")
            case "ready":
                self._ready(message.ready)
            case "done":
                self._done(message.done)
            case "failed":
                self._fence.acknowledge(drain_from_wire(message.failed.drain))
                self._lose(message.failed.reason)
            case "aborted":
                self._fence.acknowledge(drain_from_wire(message.aborted.drain))
                self._lose("the prefill node ended the room")
            case _:
                self._lose("the prefill node sent a message of another version")

    def _serve_pull(self, pull: pb.Pull) -> None:
        if self._pull is not None or self._machine.state is not ReceiverState.RESERVED:
            self._lose("the prefill node pulls twice, or too late")
            return
        grant = wire.pull_from_wire(self.room, pull)
        self._pull = self._begin_pull(
            grant, self.connection, lambda message: self.put(_Say(message))
        )

    def _grant(self, grant: m.Grant) -> None:
        self._machine.apply(ReceiverEvent.GRANT)
        reach(Place.RECEIVER_ON_GRANT)
        try:
            self._receiver.expect(
                self.room,
                self.generation,
                Destination(grant.first_page, grant.pages, grant.slot),
            )
        except TransferError as error:
            # The sender never saw the grant.
            self._fence.acknowledge(Drain.DRAINED)
            self._lose(str(error))
            return
        self._phases.mark(Phase.GRANTED)
        self._stream.say(wire.grant(grant))

    def _ready(self, ready: pb.Ready) -> None:
        self._machine.apply(ReceiverEvent.READY)
        if ready.generation != self.generation:
            self._lose(f"ready of generation {ready.generation}, not {self.generation}")
            return
        reach(Place.RECEIVER_ON_READY)
        self._phases.mark(Phase.READY)
        self._post(wire.ready_from_wire(self.room, ready, self.connection.node.name))

    def _done(self, done: pb.Done) -> None:
        self._machine.apply(ReceiverEvent.DONE)
        if done.generation != self.generation:
            self._lose(f"done of generation {done.generation}, not {self.generation}")
            return
        self._phases.mark(Phase.DONE)
        # It is said after every window was flushed, which is what a drain would say.
        self._fence.acknowledge(Drain.DRAINED)
        self._told_done = done
        self._tasks.start(partial(self._verify, done))

    async def _verify(self, done: pb.Done) -> None:
        failure: Exception | None = None
        try:
            reach(Place.RECEIVER_BEFORE_VERIFY)
            await asyncio.to_thread(
                self._receiver.verify,
                self.room,
                self.generation,
                windows_from_wire(done.windows),
                self._settings.landing,
            )
        except TransferError as error:
            failure = error
        self.put(_Verified(failure))

    def _verified(self, failure: Exception | None) -> None:
        if failure is not None:
            digest = isinstance(failure, DigestMismatch)
            self._lose(str(failure), m.LossCause.DIGEST if digest else m.LossCause.MISSING)
            return
        assert self._told_done is not None
        self._phases.mark(Phase.VERIFIED)
        received = self._receiver.track(self.room, self._phases)
        done = wire.done_from_wire(self.room, self._told_done, received)
        reach(Place.RECEIVER_BEFORE_COMMIT)
        self._machine.apply(ReceiverEvent.VERIFIED)
        self._post(done)
        reach(Place.RECEIVER_AFTER_COMMIT)

    def _lose(self, reason: str, cause: m.LossCause = m.LossCause.STREAM) -> None:
        # It may be the peer's own words.
        reason = told.text(reason)
        self._machine.apply(ReceiverEvent.LOSE)
        log.warning("room %d is lost: %s", self.room, reason, extra={"request_id": self.request_id})
        self._post(m.HandoverLost(self.room, reason, cause=cause))

    async def _ask_to_drain(self) -> None:
        """Abort on the stream; read what was under way until the reply, or until the stream
        ends."""
        if self._stream.over:
            return
        self._stream.say(wire.abort(self.generation))
        while True:
            event = await self._events.get()
            if isinstance(event, StreamBroke):
                return
            if not isinstance(event, pb.SenderMessage):
                continue
            match event.WhichOneof("message"):
                case "aborted":
                    self._fence.acknowledge(drain_from_wire(event.aborted.drain))
                case "failed":
                    self._fence.acknowledge(drain_from_wire(event.failed.drain))
                case "done":
                    # Every window was flushed before this was said.
                    self._machine.apply(ReceiverEvent.DONE)
                    self._fence.acknowledge(Drain.DRAINED)
                case "ready":
                    self._machine.apply(ReceiverEvent.READY)
            if self._fence.answered:
                return
