"""A room into whose pages and slot a peer writes: the machine that hand-overs and pulls share.

Owns the room's states, its events, the verification of what landed and the writer's fence. Knows
no engine and no stream: those are a subclass's. Thread rule: the event loop; what has not
landed yet is waited for in a thread.
Invariants: a room that was granted ends committed, or lost and then fenced on one of the fence's
three reasons; what breaks in any of its tasks ends it.
"""

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial

from tasuki.transfer import peer_values
from tasuki.transfer.errors import DigestMismatch, TransferError
from tasuki.transfer.fencing.writer_fence import WriterFence
from tasuki.transfer.protocol.handover_states import Machine, ReceiverEvent, ReceiverState
from tasuki.transfer.receiving.receiver import Receiver
from tasuki.transfer.reports import Drain, Phase, ReceiverTrack, WindowDigest
from tasuki.utils.loops import GuardedTasks

from .room import Event, Room, Stalled
from .room_deadlines import PullReceiverDeadlines, ReceiverDeadlines

log = logging.getLogger(__name__)

_FENCE_AGAIN_SECONDS = 1.0


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


class ReceivingRoom(Room[ReceiverState, ReceiverEvent, Event | Verified | Broke]):
    OVER = frozenset({ReceiverState.COMMITTED, ReceiverState.QUARANTINED, ReceiverState.ENDED})

    def __init__(
        self,
        room: int,
        generation: int,
        machine: Machine[ReceiverState, ReceiverEvent],
        deadlines: ReceiverDeadlines | PullReceiverDeadlines,
        landing: float,
        receiver: Receiver,
        fence: WriterFence,
        name: str,
        named: Mapping[str, str | int],
    ) -> None:
        """landing: seconds from the sender's end until the last window must have landed. fence: of
        what the peer writes here. The rest as in Room."""
        super().__init__(room, generation, machine, deadlines, deadlines.look, name, named)
        self.fence = fence
        events = self._events
        # Of the events alone: with the room in it, each room that ends is a cycle, which lies in
        # memory until a full collection.
        self._tasks = GuardedTasks(name, lambda error: events.put(Broke(error)))
        self._landing = landing
        self._receiver = receiver

    @property
    def progress(self) -> int | None:
        return None if self.is_over else self._receiver.windows_landed(self.room)

    @abstractmethod
    def take(self, event: Event | Stalled) -> None:
        """One of the subclass's own events, or that nothing moves. What it raises loses the
        room."""

    @abstractmethod
    def lose(self, reason: str, kind: LossKind) -> None:
        """The room is lost: call mark_lost, and answer the engine."""

    @abstractmethod
    def commit(self, received: ReceiverTrack) -> None:
        """All has landed: apply VERIFIED and answer the engine. What is read of the peer is read
        before that."""

    @abstractmethod
    async def ask_to_drain(self) -> None:
        """Ask the writer until the fence is answered; cancelled then."""

    @abstractmethod
    def fenced(self) -> None:
        """The writer can write no more: answer the engine."""

    async def run(self) -> None:
        """From the first event to the commit, to the loss of what was not granted, or to the
        fence."""
        try:
            await self._until_over()
            self._receiver.forget(self.room)
            if self.machine.state is ReceiverState.QUARANTINED:
                await self._hold_fence()
        finally:
            self._receiver.forget(self.room)
            await self._tasks.end()

    async def _until_over(self) -> None:
        try:
            await self._live()
        except Exception as error:
            self._broke(error)

    def done(self, generation: int) -> bool:
        """The sender's final status came. False where it is of another grant, and lost."""
        self.machine.apply(ReceiverEvent.DONE)
        if generation != self.generation:
            reason = f"done of generation {generation}, not {self.generation}"
            self.lose(reason, LossKind.STREAM)
            return False
        # It is sent after every window was flushed, which is what a drain would say.
        self.fence.acknowledge(Drain.DRAINED)
        self.phases.mark(Phase.DONE)
        return True

    def verify(self, read_sent: Callable[[], Sequence[WindowDigest]]) -> None:
        """Compare with what landed: at once where all has, else beside the room's events.
        read_sent: of the final status; may raise PeerInvalid."""
        try:
            sent = read_sent()
            if self._receiver.verify_landed(self.room, self.generation, sent):
                self.put(Verified(None))
            else:
                self._tasks.start(partial(self._verify, sent))
        except TransferError as error:
            self.put(Verified(error))
        except Exception as error:
            self.put(Broke(error))

    def mark_lost(self, reason: str) -> str:
        """Move, and log why. Returns the reason, fit to be shown: it may be the peer's words."""
        reason = peer_values.text(reason)
        self.machine.apply(ReceiverEvent.LOSE)
        log.warning("%s is lost: %s", self.name, reason, extra=self.named)
        return reason

    def _move(self, event: Event | Verified | Broke | Stalled) -> None:
        match event:
            case Verified(failure=None):
                self.phases.mark(Phase.VERIFIED)
                self.commit(self._receiver.track(self.room, self.phases))
            case Verified(failure=failure):
                differs = isinstance(failure, DigestMismatch)
                self.lose(str(failure), LossKind.DIGEST if differs else LossKind.MISSING)
            case Broke(error=error):
                self._broke(error)
            case _:
                self.take(event)

    def _contradicted(self, error: Exception) -> None:
        self.lose(str(error), LossKind.PROTOCOL)

    def _broke(self, error: Exception) -> None:
        """A defect in one room must still end it and fence what it granted."""
        log.error("%s broke", self.name, exc_info=error)
        if not self.is_over:
            self.lose(f"internal error: {error!r}", LossKind.PROTOCOL)

    async def _verify(self, sent: Sequence[WindowDigest]) -> None:
        failure: Exception | None = None
        try:
            await asyncio.to_thread(
                self._receiver.verify, self.room, self.generation, sent, self._landing
            )
        except TransferError as error:
            failure = error
        self.put(Verified(failure))

    async def _hold_fence(self) -> None:
        while True:
            try:
                await self.fence.hold(self.ask_to_drain)
            except Exception:
                # What was granted stays quarantined until a fence holds; so it is tried again.
                log.exception("%s: its fence broke", self.name)
                await asyncio.sleep(_FENCE_AGAIN_SECONDS)
            else:
                self.machine.apply(ReceiverEvent.FENCED)
                self.fenced()
                return
