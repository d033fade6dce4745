"""Receiving side of a transfer, of any kind: a state machine from events to actions.

Owns the side's state, its deadlines, and the fence of the writer. Knows no engine, stream, thread,
clock or arena: a driver gives it the time and performs its actions. Pure.

Invariants: a transfer with granted memory ends committed, or lost and then fenced for one of the
fence's three reasons. At every time wake() bounds the time until the next check. A message of
another generation commits nothing and acknowledges no drain.
"""

from dataclasses import dataclass, field
from enum import Enum, auto
from math import inf

from tasuki.transfer import peer_values
from tasuki.transfer.errors import PeerInvalid
from tasuki.transfer.reports import Drain, Phase, PhaseMarks

from . import actions as do
from . import events as on
from . import messages as say
from .actions import Action, Loss
from .deadlines import ProgressWatch, PullReceiverDeadlines, ReceiverDeadlines
from .events import Event
from .fence import ALIVE, Fence, FenceReason, FenceTerms
from .messages import Payload
from .states import (
    Announces,
    DrainBy,
    IllegalTransition,
    Kind,
    ReceiverEvent,
    ReceiverState,
    receiver_machine,
)

_OVER = frozenset({ReceiverState.COMMITTED, ReceiverState.ENDED})
_ANOTHER_VERSION = "the prefill node sent a message of another version"


@dataclass(frozen=True)
class ReceivingTerms:
    """Limits of a receiving side. deadlines: longest time without progress in each state. fence:
    durations for fencing the writer. within: limit of the whole transfer in seconds; None: no limit
    while it makes progress."""

    deadlines: ReceiverDeadlines | PullReceiverDeadlines
    fence: FenceTerms
    within: float | None = None


class _Asking(Enum):
    """State of this receiver's request for the writer's drain (the end of its posted writes)."""

    ON_STREAM = auto()
    CALLING = auto()
    PAUSED = auto()


@dataclass
class _Quarantine:
    """State of a lost transfer until its writer is fenced. Times are monotonic seconds. since: time
    of the loss, or of the next try; patience counts from it. until: time for asking for the drain
    by a call. severing: evidence for breaking the endpoints, once that has begun; else None.
    held_at: earliest time of the next try after endpoints could not be broken."""

    since: float
    asking: _Asking = _Asking.PAUSED
    until: float = inf
    severing: FenceReason | None = None
    held_at: float = field(default=-inf)


class Receiving:
    def __init__(
        self, kind: Kind, transfer_id: int, generation: int, terms: ReceivingTerms, now: float
    ) -> None:
        self.kind = kind
        self.transfer_id = transfer_id
        self.generation = generation
        self.phases = PhaseMarks(now)
        self.fence = Fence(terms.fence)
        self._terms = terms
        self._machine = receiver_machine(kind)
        self._began = now
        self._watch = ProgressWatch(terms.deadlines.look, now)
        self._turn_watch = ProgressWatch(terms.deadlines.look, now)
        self._looked = on.Look()
        self._writer = ALIVE
        self._stream_over = False
        self._position: int | None = None
        self._wait: float | None = None
        self._pulls = False
        self._granted: say.Grant | None = None
        self._done: Payload = None
        self._quarantine: _Quarantine | None = None

    @property
    def state(self) -> ReceiverState:
        return self._machine.state

    @property
    def is_over(self) -> bool:
        """Return True if this side has ended and takes no more events."""
        return self.state in _OVER

    @property
    def is_lost(self) -> bool:
        """Return True if the transfer is lost and its granted ids wait for their fence."""
        return self._quarantine is not None

    @property
    def wait(self) -> float | None:
        """Return the seconds of prefill before this transfer's prompt, as the sender first reported
        them; None if it reported none."""
        return self._wait

    def wake(self, now: float) -> float:
        """Return the seconds until the next check (the event Look) is due."""
        if self._quarantine is not None:
            return self.fence.terms.look
        left = self._terms.deadlines.look
        if self._terms.within is not None:
            left = min(left, self._began + self._terms.within - now)
        return max(0.0, left)

    def step(self, event: Event, now: float) -> list[Action]:
        """Take one event and return the actions to perform, in order."""
        if self.is_over:
            return []
        try:
            done = self._take(event, now)
        except (IllegalTransition, PeerInvalid) as error:
            done = self._lose(str(error), Loss.PROTOCOL, now)
        if self._quarantine is None:
            self._watch.still(self._mark, now)
        return done

    # Events

    def _take(self, event: Event, now: float) -> list[Action]:
        match event:
            case on.Look():
                return self._look(event, now)
            case on.DrainAnswered(drain=drain):
                return self._drain_answered(drain, now)
            case on.Failed():
                return self._failed(event, now)
            case on.Broke(reason=reason):
                return self._broke(reason, now)
            case _ if self._quarantine is not None:
                return self._take_quarantined(event, self._quarantine, now)
            case on.Begin():
                return self._begin(now)
            case say.Contradiction(reason=reason):
                return self._lose(reason, Loss.PROTOCOL, now)
            case say.Grant():
                return self._grant(event, now)
            case on.Declined():
                return self._lose("no room to receive it now", Loss.NO_ROOM, now)
            case on.Cancelled():
                return self._end(now)
            case on.GivenUp(reason=reason, loss=loss):
                return self._lose(reason, loss, now)
            case on.Stopped(reason=reason):
                # After the final status nothing more comes, and nothing more is needed.
                live = self.state is not ReceiverState.VERIFYING
                return self._lose(reason, Loss.STREAM, now) if live else []
            case on.StreamBroke(reason=reason):
                self._stream_over = True
                live = self.state is not ReceiverState.VERIFYING
                return self._lose(reason, Loss.STREAM, now) if live else []
            case on.Verified(failure=None):
                self.phases.mark(Phase.VERIFIED, now)
                return [do.Prepare(self._done)]
            case on.Verified(failure=failure, differs=differs):
                loss = Loss.DIGEST if differs else Loss.MISSING
                return self._lose(str(failure), loss, now)
            case on.Prepared(payload=payload):
                self._machine.apply(ReceiverEvent.VERIFIED)
                return [do.Commit(payload), do.Forget(), *self._end_pull()]
        return self._hear(event, now)

    def _begin(self, now: float) -> list[Action]:
        if not self.kind.grants_first:
            self._machine.apply(ReceiverEvent.RESERVE)
            return [do.Say(say.Ask())]
        assert self._granted is not None
        self._machine.apply(ReceiverEvent.GRANT)
        self.phases.mark(Phase.GRANTED, now)
        return [do.Expect(self._granted.destination), do.Say(say.Ask())]

    def grant_first(self, grant: say.Grant) -> None:
        """Set the destination sent with the opening message. REQUIRES: the kind grants memory
        first, and the event Begin was not taken."""
        self._granted = grant

    def _grant(self, grant: say.Grant, now: float) -> list[Action]:
        self._machine.apply(ReceiverEvent.GRANT)
        target = grant.destination
        if not self.kind.brings and (target.pages or target.slot is not None):
            # Nothing was sent to the sender.
            self.fence.acknowledge(Drain.DRAINED, now)
            return self._lose("a copy's transfer is granted ids", Loss.PROTOCOL, now)
        self.phases.mark(Phase.GRANTED, now)
        return [do.Expect(target), do.Say(grant)]

    def _hear(self, event: Event, now: float) -> list[Action]:
        """Handle a message from the sender; return the actions to perform."""
        match event:
            case say.Queued():
                return self._queued(event)
            case say.Accepted():
                self._machine.apply(ReceiverEvent.ACCEPTED)
                self.phases.mark(Phase.ACCEPTED, now)
                return [do.WantGrant()]
            case say.Refused(payload=payload):
                self._machine.apply(ReceiverEvent.REFUSED)
                return [do.TellRefused(payload), do.Forget(), *self._end_pull()]
            case say.Ready(generation=generation, payload=payload) if self._awaits(Announces.TOKEN):
                return self._ready(generation, do.TellReady(payload), now)
            case say.Held(generation=generation) if self._awaits(Announces.HELD):
                return self._ready(generation, do.TellHeld(), now)
            case say.Done():
                return self._finished(event, now)
            case say.Ended(drain=drain, reason=given):
                self._acknowledge(event, drain, now)
                reason = "the prefill node ended the transfer" if given is None else given
                return self._lose(reason, Loss.STREAM, now)
            case say.PullAsked(payload=payload) if self.kind.queues:
                if self._pulls or self.state is not ReceiverState.RESERVED:
                    reason = "the prefill node pulls twice, or too late"
                    return self._lose(reason, Loss.STREAM, now)
                self._pulls = True
                return [do.ServePull(payload)]
            case say.StopPull() if self.kind.queues:
                return self._stop_pull()
            case say.MediaWanted(payload=payload) if self.kind.queues:
                self._machine.apply(ReceiverEvent.MEDIA_WANTED)
                return [do.SendMedia(payload)]
        return self._lose(_ANOTHER_VERSION, Loss.STREAM, now)

    def _awaits(self, announcement: Announces) -> bool:
        return self.kind.announces is announcement

    def _stop_pull(self) -> list[Action]:
        return [do.EndPull("the prefill node does not wait any longer")] if self._pulls else []

    def _queued(self, queued: say.Queued) -> list[Action]:
        self._machine.apply(ReceiverEvent.QUEUED)
        self._position = queued.position
        if queued.wait is None or self._wait is not None:
            return []
        self._wait = queued.wait
        return [do.NoteWait(queued.wait, may_move=not self._pulls)]

    def _ready(self, generation: int, told: Action, now: float) -> list[Action]:
        self._machine.apply(ReceiverEvent.READY)
        if generation != self.generation:
            reason = f"ready of generation {generation}, not {self.generation}"
            return self._lose(reason, Loss.STREAM, now)
        self.phases.mark(Phase.READY, now)
        return [told]

    def _finished(self, done: say.Done, now: float) -> list[Action]:
        self._machine.apply(ReceiverEvent.DONE)
        if done.generation != self.generation:
            reason = f"done of generation {done.generation}, not {self.generation}"
            return self._lose(reason, Loss.STREAM, now)
        # Done is sent after every chunk was flushed, so it also acknowledges the drain.
        self.fence.acknowledge(Drain.DRAINED, now)
        self.phases.mark(Phase.DONE, now)
        self._done = done.payload
        return [do.Verify(done.sent)]

    def _acknowledge(self, ended: say.Ended, drain: Drain, now: float) -> None:
        if ended.generation is None or ended.generation == self.generation:
            self.fence.acknowledge(drain, now)

    def _failed(self, event: on.Failed, now: float) -> list[Action]:
        match event.action:
            case do.Sever():
                return self._broke(event.reason, now)
            case do.Expect() if self._quarantine is None and not event.is_defect:
                # The sender never saw the grant.
                self.fence.acknowledge(Drain.DRAINED, now)
                return self._lose(event.reason, Loss.STREAM, now)
            case _ if event.is_defect:
                return self._broke(event.reason, now)
        return [] if self._quarantine else self._lose(event.reason, Loss.PROTOCOL, now)

    def _broke(self, reason: str, now: float) -> list[Action]:
        """End the transfer because of a defect. If breaking the writer's endpoints failed, try to
        fence it again later."""
        quarantine = self._quarantine
        if quarantine is None:
            return self._lose(f"internal error: {reason}", Loss.PROTOCOL, now)
        if quarantine.severing is not None:
            held_at = now + self.fence.terms.broken
            self._quarantine = _Quarantine(held_at, held_at=held_at)
        elif quarantine.asking is _Asking.CALLING:
            self._pause(quarantine, now)
        return []

    # Deadlines

    @property
    def _mark(self) -> tuple[object, ...]:
        """Return a value for comparison; it is different after each progress of the transfer."""
        looked = self._looked
        others = looked.others if self._is_behind else 0
        return self.state, self._position, looked.pulled, looked.pieces, looked.progress, others

    @property
    def _is_behind(self) -> bool:
        """Return True if memory is granted and none of the transfer's chunks has arrived: the
        sender may compute other prompts first."""
        return self.state is ReceiverState.GRANTED and not self._looked.progress

    def _look(self, look: on.Look, now: float) -> list[Action]:
        self._looked, self._writer = look, look.writer
        if self._quarantine is not None:
            return self._look_at_fence(self._quarantine, now)
        state, within = self.state, self._terms.within
        if within is not None and now >= self._began + within:
            return self._lose(f"it is not here within {within:.3g} s", Loss.QUEUE_TIMEOUT, now)
        if (late := self._is_late(now)) is not None:
            reason = f"its prompt was not begun for {late} s: {state.value}"
            return self._lose(reason, Loss.QUEUE_TIMEOUT, now)
        allowed = self._terms.deadlines.of(state)
        if self._watch.still(self._mark, now) <= allowed:
            return []
        if state is ReceiverState.ACCEPTED:
            reason = f"no room to receive it came free here for {allowed} s"
            return self._lose(reason, Loss.NO_ROOM, now)
        return self._lose(f"nothing moved for {allowed} s: {state.value}", Loss.STALLED, now)

    def _is_late(self, now: float) -> float | None:
        """Return the limit in seconds for the sender's queue if the prompt has waited longer, even
        with progress; else None."""
        deadlines = self._terms.deadlines
        if not (self.kind.queues and isinstance(deadlines, ReceiverDeadlines)):
            return None
        waits = self._is_behind or self.state is ReceiverState.RESERVED
        mark = (self.state if waits else None, self._looked.pulled, self._looked.pieces)
        waited = self._turn_watch.still(mark, now)
        return deadlines.queue if waits and waited > deadlines.queue else None

    # Loss, and the fence

    def _lose(self, reason: str, loss: Loss, now: float) -> list[Action]:
        """Give the transfer up and report its loss to the engine. reason: text for the log, perhaps
        the peer's."""
        if self._quarantine is not None:
            return []
        return [do.TellLost(peer_values.text(reason), loss), *self._end(now)]

    def _end(self, now: float) -> list[Action]:
        """End the transfer; if memory was granted, ask for the writer's drain."""
        after = self._machine.apply(ReceiverEvent.LOSE)
        done: list[Action] = [do.Forget(), *self._end_pull()]
        if after is not ReceiverState.QUARANTINED:
            return done
        quarantine = self._quarantine = _Quarantine(now)
        return [*done, *self._ask(quarantine, now), *self._look_at_fence(quarantine, now)]

    def _end_pull(self) -> list[Action]:
        return [do.EndPull("its transfer is over")] if self._pulls else []

    def _ask(self, quarantine: _Quarantine, now: float) -> list[Action]:
        """Ask for the writer's drain: by a message while the stream is open, else by a call."""
        if self.fence.answered:
            return []
        if self._stream_over:
            return self._call(quarantine)
        quarantine.asking = _Asking.ON_STREAM
        if self.kind.drain_by is DrainBy.CALL:
            quarantine.until = now + self.fence.terms.acknowledge
        question = say.StopPull() if self.kind.grants_first else say.Abort()
        return [do.Say(question)]

    def _call(self, quarantine: _Quarantine) -> list[Action]:
        quarantine.until = inf
        if self.kind.drain_by is not DrainBy.CALL:
            return []
        quarantine.asking = _Asking.CALLING
        return [do.CallForDrain()]

    def _pause(self, quarantine: _Quarantine, now: float) -> None:
        quarantine.asking = _Asking.PAUSED
        quarantine.until = now + self.fence.terms.again

    def _take_quarantined(self, event: Event, quarantine: _Quarantine, now: float) -> list[Action]:
        """Take an event of a lost transfer; it was under way when the transfer was lost."""
        match event:
            case say.Done(generation=generation):
                if generation == self.generation:
                    self._machine.apply(ReceiverEvent.DONE)
                    self.fence.acknowledge(Drain.DRAINED, now)
            case say.Ended(drain=drain):
                self._acknowledge(event, drain, now)
            case say.Ready() | say.Held():
                self._machine.apply(ReceiverEvent.READY)
            case on.Severed(reason=reason):
                self._machine.apply(ReceiverEvent.FENCED)
                return [do.TellFenced(reason)]
            case on.StreamBroke():
                self._stream_over = True
                if quarantine.asking is _Asking.ON_STREAM and not self.fence.answered:
                    return self._call(quarantine)
        return self._look_at_fence(quarantine, now)

    def _drain_answered(self, drain: Drain | None, now: float) -> list[Action]:
        if drain is not None:
            self.fence.acknowledge(drain, now)
        quarantine = self._quarantine
        if quarantine is None:
            return []
        if quarantine.asking is _Asking.CALLING:
            self._pause(quarantine, now)
        return self._look_at_fence(quarantine, now)

    def _look_at_fence(self, quarantine: _Quarantine, now: float) -> list[Action]:
        if quarantine.severing is not None or now < quarantine.held_at:
            return []
        reason = self.fence.reason(self._writer, now)
        if reason is not None:
            quarantine.severing = reason
            return [do.Sever(reason)]
        done: list[Action] = []
        if now >= quarantine.until and not self.fence.answered:
            done += self._call(quarantine)
        if now > quarantine.since + self.fence.terms.patience:
            quarantine.since = inf
            done.append(do.GiveUp())
        return done
