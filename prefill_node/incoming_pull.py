"""One pull on the prefill node, where the return path is received: between a room's stream, the
engine and the receiver.

Owns the pull's machine. Lives on when its room is over, until it is committed or fenced. Thread
rule: the event loop; digests are compared in a thread. Invariants: the engine hears exactly one of
PullCommitted, or PullLost followed by PullFenced; PullFenced is said only on one of the fence's
three reasons.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from ..engine import messages as m
from ..proto import handover_pb2 as pb
from ..transfer import peer_values as told
from ..transfer.destination import Destination
from ..transfer.errors import PeerInvalid, TransferError
from ..transfer.outgoing import Drain
from ..transfer.protocol import IllegalTransition
from ..transfer.pull_protocol import PullReceiverEvent, PullReceiverState, pull_receiver_machine
from ..transfer.receiver import Receiver
from ..transfer.timeline import HandoverTimeline, Phase, PhaseClock
from ..transfer.timeline_wire import sender_track_from_wire
from ..transfer.wire import drain_from_wire, windows_from_wire
from ..transfer.writer_fence import WriterFence
from . import handover_wire as wire

log = logging.getLogger(__name__)

_LIVE = (PullReceiverState.NEW, PullReceiverState.GRANTED, PullReceiverState.VERIFYING)


@dataclass(frozen=True)
class PullLimits:
    """Seconds. progress: a pull on which nothing lands for that long is lost; landing: from its
    end's message until the last window must have landed."""

    progress: float = 5.0
    landing: float = 2.0


@dataclass(frozen=True)
class _Lost:
    reason: str


@dataclass(frozen=True)
class _Verified:
    failure: Exception | None


PullEvent = pb.PullDone | pb.PullFailed | _Lost | _Verified
Say = Callable[[pb.SenderMessage], None]
"""On the room's stream, in order, as long as the room lives; dropped after that."""


class IncomingPull:
    def __init__(
        self,
        grant: m.PullGrant,
        post: Callable[[m.Inbox], None],
        receiver: Receiver,
        fence: WriterFence,
        limits: PullLimits,
        say: Say,
    ) -> None:
        self.room = grant.room
        self.generation = grant.generation
        self._grant = grant
        self._post = post
        self._receiver = receiver
        self._fence = fence
        self._limits = limits
        self._say = say
        self._events: asyncio.Queue[PullEvent] = asyncio.Queue()
        self._machine = pull_receiver_machine()
        self._phases = PhaseClock()
        self._report: pb.Report | None = None
        self._verifying: asyncio.Task[None] | None = None

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
            while self._machine.state in _LIVE:
                self._take(await self._next())
            self._receiver.forget(self.room)
            if self._machine.state is PullReceiverState.QUARANTINED:
                await self._fence.hold(self._ask_to_drain)
                self._machine.apply(PullReceiverEvent.FENCED)
                self._post(m.PullFenced(self.room))
        finally:
            self._receiver.forget(self.room)

    async def _next(self) -> PullEvent:
        """The next event, or what it means that nothing moves."""
        moved_at, landed = time.monotonic(), 0
        while True:
            try:
                return await asyncio.wait_for(self._events.get(), timeout=0.25)
            except TimeoutError:
                now, progress = time.monotonic(), self._receiver.windows_landed(self.room)
            if progress > landed or self._machine.state is PullReceiverState.VERIFYING:
                moved_at, landed = now, progress
            elif now - moved_at > self._limits.progress:
                return _Lost(f"nothing landed for {self._limits.progress} s")

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
                case _Lost(reason=reason):
                    # After PullDone nothing more comes, and nothing more is needed.
                    if self._machine.state is PullReceiverState.GRANTED:
                        self._lose(reason)
        except IllegalTransition as error:
            self._lose(str(error))
        except PeerInvalid as error:
            self._lose(str(error))
        except Exception as error:
            # A defect in one pull must still end it and fence what it granted.
            log.exception("the pull of room %d broke", self.room)
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
        self._verifying = asyncio.create_task(self._verify(done))

    async def _verify(self, done: pb.PullDone) -> None:
        failure: Exception | None = None
        try:
            await asyncio.to_thread(
                self._receiver.verify,
                self.room,
                self.generation,
                windows_from_wire(done.windows),
                self._limits.landing,
            )
        except TransferError as error:
            failure = error
        except Exception as error:
            # Nobody waits for this task: untold, the pull would wait for ever.
            log.exception("the pull of room %d could not be verified", self.room)
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
