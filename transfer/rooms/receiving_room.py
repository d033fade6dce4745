"""A room into whose pages and slot a peer writes: the machine that hand-overs and pulls share.

Owns the room's states, its events, the verification of what landed and the writer's fence. Knows
no engine and no stream: what one direction adds to the machine is its ReceivingSide. Thread rule:
the event loop; digests are compared in a thread.
Invariants: a room that was granted ends committed, or lost and then fenced on one of the fence's
three reasons; nothing is awaited between the room and its next event; what breaks in any of its
tasks ends it.
"""

import asyncio
import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Generic, Protocol, TypeVar

from tasuki.transfer import peer_values as told
from tasuki.transfer.errors import DigestMismatch, PeerInvalid, TransferError
from tasuki.transfer.fencing.writer_fence import WriterFence
from tasuki.transfer.liveness.progress_watch import ProgressWatch
from tasuki.transfer.protocol.handover_states import (
    IllegalTransition,
    Machine,
    ReceiverEvent,
    ReceiverState,
)
from tasuki.transfer.receiving.receiver import Receiver
from tasuki.transfer.timeline import Phase, PhaseClock, ReceiverTrack
from tasuki.transfer.windows.send_report import Drain, WindowDigest
from tasuki.utils.loops.guarded_tasks import GuardedTasks

from .room_deadlines import PullReceiverDeadlines, ReceiverDeadlines
from .room_inbox import RoomInbox

log = logging.getLogger(__name__)

_FENCE_AGAIN_SECONDS = 1.0
_OVER = (ReceiverState.COMMITTED, ReceiverState.QUARANTINED, ReceiverState.ENDED)


class LossKind(Enum):
    """What the room itself finds wrong, whichever way its bytes go."""

    STREAM = "the peer ended it or contradicts itself"
    PROTOCOL = "the peer broke the protocol, or this node is defective"
    MISSING = "not all that was sent has landed"
    DIGEST = "what landed is not what was sent"


@dataclass(frozen=True)
class Verified:
    """The digests were compared."""

    failure: Exception | None


@dataclass(frozen=True)
class Broke:
    """One of the room's tasks raised what nobody foresaw."""

    error: Exception


Event = TypeVar("Event")


class ReceivingSide(Protocol[Event]):
    """What one direction adds. What its methods raise loses the room."""

    def take(self, event: Event) -> None:
        """One of the direction's own events."""

    def overdue(self) -> Event | None:
        """What it means that nothing moves; None while that is allowed. Called at each look."""

    def lose(self, reason: str, kind: LossKind) -> None:
        """The room is lost: call ReceivingRoom.lose, and answer the engine."""

    def commit(self, received: ReceiverTrack) -> None:
        """All has landed: apply VERIFIED and answer the engine. What is read of the peer is read
        before that."""

    async def ask_to_drain(self) -> None:
        """Ask the writer until the fence is answered; cancelled then."""

    def fenced(self) -> None:
        """The writer can write no more: answer the engine."""


class ReceivingRoom(Generic[Event]):
    def __init__(
        self,
        room: int,
        generation: int,
        machine: Machine[ReceiverState, ReceiverEvent],
        deadlines: ReceiverDeadlines | PullReceiverDeadlines,
        landing: float,
        receiver: Receiver,
        fence: WriterFence,
        side: ReceivingSide[Event],
        name: str,
        named: Mapping[str, str | int],
    ) -> None:
        """landing: seconds from the sender's end until the last window must have landed. name,
        named: what log lines begin with and are found by."""
        self.room = room
        self.generation = generation
        self.machine = machine
        self.fence = fence
        self.phases = PhaseClock()
        self.inbox: RoomInbox[Event | Verified | Broke] = RoomInbox(deadlines.look)
        self.tasks = GuardedTasks(name, lambda error: self.inbox.put(Broke(error)))
        self._deadlines = deadlines
        self._watch = ProgressWatch(deadlines.look)
        self._landing = landing
        self._receiver = receiver
        self._side = side
        self._name = name
        self._named = named

    @property
    def landed(self) -> int:
        """Windows, as long as the room is expected."""
        return self._receiver.windows_landed(self.room)

    @property
    def is_over(self) -> bool:
        """Whether the engine has its answer."""
        return self.machine.state in _OVER

    async def run(self) -> None:
        """From the first event to the commit, to the loss of what was not granted, or to the
        fence."""
        try:
            await self._live()
            self._receiver.forget(self.room)
            if self.machine.state is ReceiverState.QUARANTINED:
                await self._hold_fence()
        finally:
            self._receiver.forget(self.room)
            await self.tasks.end()

    def stood_still(self, *moves: Hashable) -> float | None:
        """The seconds that the state allows, where neither it nor what is given has changed for
        longer; else None."""
        state = self.machine.state
        allowed = self._deadlines.of(state)
        return allowed if self._watch.still((state, *moves)) > allowed else None

    def done(self, generation: int) -> bool:
        """The sender's final status came. False where it is of another grant, and lost."""
        self.machine.apply(ReceiverEvent.DONE)
        if generation != self.generation:
            reason = f"done of generation {generation}, not {self.generation}"
            self._side.lose(reason, LossKind.STREAM)
            return False
        # It is sent after every window was flushed, which is what a drain would say.
        self.fence.acknowledge(Drain.DRAINED)
        self.phases.mark(Phase.DONE)
        return True

    def verify(self, read_sent: Callable[[], Sequence[WindowDigest]]) -> None:
        """Compare with what landed, beside the room's events. read_sent: of the final status; may
        raise PeerInvalid."""
        self.tasks.start(partial(self._verify, read_sent))

    def lose(self, reason: str) -> str:
        """Move, and log why. Returns the reason, fit to be shown: it may be the peer's words."""
        reason = told.text(reason)
        self.machine.apply(ReceiverEvent.LOSE)
        log.warning("%s is lost: %s", self._name, reason, extra=dict(self._named))
        return reason

    async def _live(self) -> None:
        try:
            while not self.is_over:
                self._take(await self.inbox.next(self._side.overdue))
        except Exception as error:
            self._broke(error)

    def _take(self, event: Event | Verified | Broke) -> None:
        try:
            match event:
                case Verified(failure=None):
                    self.phases.mark(Phase.VERIFIED)
                    self._side.commit(self._receiver.track(self.room, self.phases))
                case Verified(failure=failure):
                    differs = isinstance(failure, DigestMismatch)
                    self._side.lose(str(failure), LossKind.DIGEST if differs else LossKind.MISSING)
                case Broke(error=error):
                    self._broke(error)
                case _:
                    self._side.take(event)
        except (IllegalTransition, PeerInvalid) as error:
            self._side.lose(str(error), LossKind.PROTOCOL)
        except Exception as error:
            self._broke(error)

    def _broke(self, error: Exception) -> None:
        """A defect in one room must still end it and fence what it granted."""
        log.error("%s broke", self._name, exc_info=error)
        if not self.is_over:
            self._side.lose(f"internal error: {error!r}", LossKind.PROTOCOL)

    async def _verify(self, read_sent: Callable[[], Sequence[WindowDigest]]) -> None:
        failure: Exception | None = None
        try:
            await asyncio.to_thread(
                self._receiver.verify, self.room, self.generation, read_sent(), self._landing
            )
        except TransferError as error:
            failure = error
        self.inbox.put(Verified(failure))

    async def _hold_fence(self) -> None:
        while True:
            try:
                await self.fence.hold(self._side.ask_to_drain)
            except Exception:
                # What was granted stays quarantined until a fence holds; so it is tried again.
                log.exception("%s: its fence broke", self._name)
                await asyncio.sleep(_FENCE_AGAIN_SECONDS)
            else:
                self.machine.apply(ReceiverEvent.FENCED)
                self._side.fenced()
                return
