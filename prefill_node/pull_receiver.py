"""One pull on the prefill node, where the return path is received: between a room's stream, the
engine and the receiver.

Owns the pull's machine. Lives on when its room is over, until it is committed or fenced. Thread
rule: the event loop; digests are compared in a thread. Invariants: the engine hears exactly one of
PullCommitted, or PullLost followed by PullFenced; PullFenced is said only on one of the fence's
three reasons.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tasuki.engine import messages as m
from tasuki.proto import handover_pb2 as pb
from tasuki.transfer import peer_values as told
from tasuki.transfer.errors import PeerInvalid, TransferError
from tasuki.transfer.fencing.writer_fence import WriterFence
from tasuki.transfer.liveness.progress_watch import ProgressWatch
from tasuki.transfer.protocol.handover_states import IllegalTransition
from tasuki.transfer.protocol.messages import drain_from_wire, windows_from_wire
from tasuki.transfer.protocol.pull_states import (
    PullReceiverEvent,
    PullReceiverState,
    pull_receiver_machine,
)
from tasuki.transfer.protocol.timeline_messages import sender_track_from_wire
from tasuki.transfer.receiving.receiver import Receiver
from tasuki.transfer.rooms.room_deadlines import PullReceiverDeadlines
from tasuki.transfer.rooms.room_tasks import RoomTasks
from tasuki.transfer.timeline import HandoverTimeline, Phase, PhaseClock
from tasuki.transfer.windows.destination import Destination
from tasuki.transfer.windows.send_report import Drain

from . import handover_messages as wire

log = logging.getLogger(__name__)

_FENCE_AGAIN_SECONDS = 1.0
_LIVE = (PullReceiverState.NEW, PullReceiverState.GRANTED, PullReceiverState.VERIFYING)


@dataclass(frozen=True)
class _Lost:
    reason: str


@dataclass(frozen=True)
class _Stalled:
    """As _Lost, after PullDone too: nothing more is waited for."""

    reason: str


@dataclass(frozen=True)
class _Verified:
    failure: Exception | None


@dataclass(frozen=True)
class _Broke:
    """One of the pull's tasks raised what nobody foresaw."""

    error: Exception


PullEvent = pb.PullDone | pb.PullFailed | _Lost | _Stalled | _Verified | _Broke
Say = Callable[[pb.SenderMessage], None]
"""On the room's stream, in order, as long as the room lives; dropped after that."""


class IncomingPull:
    def __init__(
        self,
        grant: m.PullGrant,
        post: Callable[[m.Inbox], None],
        receiver: Receiver,
        fence: WriterFence,
        deadlines: PullReceiverDeadlines,
        say: Say,
    ) -> None:
        self.room = grant.room
        self.generation = grant.generation
        self._grant = grant
        self._post = post
        self._receiver = receiver
        self._fence = fence
        self._deadlines = deadlines
        self._moves = ProgressWatch(deadlines.look)
        self._say = say
        self._events: asyncio.Queue[PullEvent] = asyncio.Queue()
        self._machine = pull_receiver_machine()
        self._phases = PhaseClock()
        self._report: pb.Report | None = None
        self._tasks = RoomTasks(
            f"pull-{grant.room}", lambda error: self._events.put_nowait(_Broke(error))
        )

    @property
    def progress(self) -> int | None:
        """Grows as it comes in; None once it is committed or lost."""
        if self._machine.state not in _LIVE:
            return None
        return self._receiver.windows_landed(self.room)

    def put(self, event: pb.PullDone | pb.PullFailed) -> None:
        """What came on the room's stream."""
        self._events.put_nowait(event)

    def lose(self, reason: str) -> None:
        """Idempotent; without effect where everything was sent already."""
        self._events.put_nowait(_Lost(reason))

    def acknowledge(self, drain: Drain) -> None:
        """The writer's word on what it posted, from a renewal. It may overtake the stream, so it is
        no reason to lose what is on its way there."""
        self._fence.acknowledge(drain)

    async def run(self) -> None:
        """From the grant to the commit, or to the fence."""
        grant = self._grant
        target = Destination(grant.first_page, grant.pages, grant.slot)
        try:
            self._receiver.expect(self.room, self.generation, target)
            self._machine.apply(PullReceiverEvent.GRANT)
            self._phases.mark(Phase.GRANTED)
            self._say(wire.pull(grant))
            await self._live()
            self._receiver.forget(self.room)
            if self._machine.state is PullReceiverState.QUARANTINED:
                await self._hold_fence()
        finally:
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
                await self._fence.hold(self._ask_to_drain)
            except Exception:
                # What was granted stays quarantined until a fence holds; so it is tried again.
                log.exception("the pull of room %d: its fence broke", self.room)
                await asyncio.sleep(_FENCE_AGAIN_SECONDS)
            else:
                self._machine.apply(PullReceiverEvent.FENCED)
                self._post(m.PullFenced(self.room))
                return

    async def _next(self) -> PullEvent:
        """The next event, or what it means that nothing moves."""
        while True:
            state = self._machine.state
            allowed = self._deadlines.of(state)
            if self._moves.still((state, self.progress)) > allowed:
                return _Stalled(f"nothing moved for {allowed} s: {state.value}")
            with contextlib.suppress(TimeoutError):
                return await asyncio.wait_for(self._events.get(), self._deadlines.look)

    def _take(self, event: PullEvent) -> None:
        try:
            match event:
                case pb.PullDone():
                    self._done(event)
                case pb.PullFailed():
                    if event.generation == self.generation:
                        self._fence.acknowledge(drain_from_wire(event.drain))
                    self._lose(event.reason)
                case _Verified(failure=failure):
                    self._verified(failure)
                case _Stalled(reason=reason):
                    self._lose(reason)
                case _Broke(error=error):
                    self._broke(error)
                case _Lost(reason=reason):
                    # After PullDone nothing more comes, and nothing more is needed.
                    if self._machine.state is PullReceiverState.GRANTED:
                        self._lose(reason)
        except IllegalTransition as error:
            self._lose(str(error))
        except PeerInvalid as error:
            self._lose(str(error))
        except Exception as error:
            self._broke(error)

    def _broke(self, error: Exception) -> None:
        """A defect in one pull must still end it and fence what it granted."""
        log.error("the pull of room %d broke", self.room, exc_info=error)
        if self._machine.state in _LIVE:
            self._lose(f"internal error: {error!r}")

    def _done(self, done: pb.PullDone) -> None:
        self._machine.apply(PullReceiverEvent.DONE)
        if done.generation != self.generation:
            self._lose(f"done of generation {done.generation}, not {self.generation}")
            return
        # It is said after every window was flushed, which is what a drain would say.
        self._fence.acknowledge(Drain.DRAINED)
        self._phases.mark(Phase.DONE)
        told.count(done.report.bytes, "report.bytes")
        self._report = done.report
        self._tasks.start(partial(self._verify, done))

    async def _verify(self, done: pb.PullDone) -> None:
        failure: Exception | None = None
        try:
            await asyncio.to_thread(
                self._receiver.verify,
                self.room,
                self.generation,
                windows_from_wire(done.windows),
                self._deadlines.landing,
            )
        except TransferError as error:
            failure = error
        self._events.put_nowait(_Verified(failure))

    def _verified(self, failure: Exception | None) -> None:
        if failure is not None:
            self._lose(str(failure))
            return
        self._machine.apply(PullReceiverEvent.VERIFIED)
        self._phases.mark(Phase.VERIFIED)
        seconds = self._phases.marks[-1].at
        assert self._report is not None
        timeline = HandoverTimeline(
            sender_track_from_wire(self._report.track),
            self._receiver.track(self.room, self._phases),
        )
        report = m.PullReport(self._grant.tokens, self._report.bytes, seconds, timeline)
        self._post(m.PullCommitted(self.room, report))

    def _lose(self, reason: str) -> None:
        self._machine.apply(PullReceiverEvent.LOSE)
        log.warning("pull of room %d is lost: %s", self.room, told.text(reason))
        self._post(m.PullLost(self.room))

    async def _ask_to_drain(self) -> None:
        """On the stream while that stands; its end asks the same. A renewal answers in any case."""
        if not self._fence.answered:
            self._say(wire.stop_pull(self.generation))
        while True:
            event = await self._events.get()
            if isinstance(event, pb.PullFailed) and event.generation == self.generation:
                self._fence.acknowledge(drain_from_wire(event.drain))
            if isinstance(event, pb.PullDone) and event.generation == self.generation:
                self._machine.apply(PullReceiverEvent.DONE)
                self._fence.acknowledge(Drain.DRAINED)
