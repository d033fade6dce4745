"""Sending side of a transfer, of any kind: a state machine from events to actions.

Owns the side's state, its deadlines, and its stop: posted writes drain before it ends. Knows no
engine, stream, thread, clock or arena: a driver gives it the time and performs its actions. Pure.

Invariants: an opened side ends only after its drain, or after the drain's deadline, as forced. It
sends at most one final message, and sends nothing after it.
"""

from dataclasses import dataclass
from math import inf

from tasuki.transfer.chunks.chunk import Destination
from tasuki.transfer.errors import PeerInvalid
from tasuki.transfer.reports import Drain, Phase, PhaseMarks, SendReport, sender_track

from . import actions as do
from . import events as on
from . import messages as say
from .actions import Action, Loss
from .deadlines import ProgressWatch, PullSenderDeadlines, SenderDeadlines
from .events import Event
from .messages import Payload
from .states import Announces, IllegalTransition, Kind, SenderEvent, SenderState, sender_machine

_OVER = frozenset({SenderState.DONE, SenderState.REFUSED, SenderState.ENDED})
_BEFORE_LEASE = frozenset({SenderState.QUEUED, SenderState.AWAITING_MEDIA})
_SAID_AGAIN_SECONDS = 0.25
"""Least seconds between two Queued messages about a changed queue position."""


@dataclass(frozen=True)
class SendingTerms:
    """Limits of a sending side. deadlines: longest time without progress in each state. look:
    seconds between two checks, and between two repetitions of the queue position. awaits_gateway:
    True if nothing is computed before the event Met."""

    deadlines: SenderDeadlines | PullSenderDeadlines
    look: float
    awaits_gateway: bool = False


class Sending:
    def __init__(
        self, kind: Kind, transfer_id: int, generation: int, terms: SendingTerms, now: float
    ) -> None:
        self.kind = kind
        self.transfer_id = transfer_id
        self.generation = generation
        self.phases = PhaseMarks(now)
        self.endpoint_failed = False
        """True if another transfer to this peer would fail too."""
        self.drain = Drain.DRAINED
        """End of this side's posted writes, drained or forced; valid once the side has ended."""
        self.given_up: Loss | None = None
        """Reason why this node ended the transfer; None if it did not."""
        self._terms = terms
        self._machine = sender_machine(kind)
        self._watch = ProgressWatch(terms.look, now)
        self._looked = on.Look()
        self._position: int | None = None
        self._said_at = self._repeated_at = -inf
        self._pulls = False
        self._opening: say.Grant | on.Pinned | None = None
        self._target: Destination | None = None
        self._report: SendReport | None = None
        self._failure: str | None = None

    @property
    def state(self) -> SenderState:
        return self._machine.state

    @property
    def is_over(self) -> bool:
        """Return True if this side has ended and takes no more events."""
        return self.state in _OVER

    def target(self, destination: Destination) -> None:
        """Set the destination of a pull's layer chunks. REQUIRES: the event Begin was not taken."""
        self._target = destination

    def wake(self, now: float) -> float:
        """Return the seconds until the next check (the event Look) is due."""
        return self._terms.look

    def step(self, event: Event, now: float) -> list[Action]:
        """Take one event and return the actions to perform, in order; none once ended."""
        if self.is_over:
            return []
        try:
            done = self._take(event, now)
        except (IllegalTransition, PeerInvalid) as error:
            done = self._stop(str(error))
        self._watch.still(self._mark, now)
        return done

    # Events

    def _take(self, event: Event, now: float) -> list[Action]:
        match event:
            case on.Look():
                return self._look(event, now)
            case on.Begin():
                return self._begin(now)
            case on.Met():
                return self._meet(now)
            case on.Missed():
                return self._miss()
            case on.Leased():
                if self._machine.apply(SenderEvent.ACCEPT) is not SenderState.ACCEPTED:
                    return []
                self.phases.mark(Phase.ACCEPTED, now)
                return [do.Say(say.Accepted())]
            case on.Waits(seconds=seconds):
                queued = say.Queued(self._position or 0, seconds)
                return [do.Say(queued)] if self.state is SenderState.QUEUED else []
            case on.Moved(position=position):
                return self._moved(position, now)
            case on.Refusal():
                return self._refuse(event)
            case on.MediaWanted(payload=payload):
                return self._want_media(payload)
            case on.MediaCame(payload=payload):
                if self._machine.apply(SenderEvent.MEDIA) is not SenderState.QUEUED:
                    return []
                self._repeated_at = now
                return [do.TakeMedia(payload)]
            case on.PullWanted(payload=payload):
                # If the room drains already, the pull is lost at once.
                self._pulls = True
                return [do.BeginPull(payload)]
            case on.Announced(payload=payload):
                return self._announce(payload, now)
            case on.Pinned():
                return self._pinned(event)
            case on.Opened():
                return self._opened(now)
            case on.Failed():
                return self._failed(event)
            case on.Broke(reason=reason):
                return self._stop(f"internal error: {reason}")
            case say.Grant():
                return self._grant(event)
            case say.Abort() | on.ReceiverLost():
                return self._stop(None)
            case on.Stopped(reason=reason) | say.Contradiction(reason=reason):
                return self._stop(reason)
        return self._end_of_bytes(event, now)

    def _end_of_bytes(self, event: Event, now: float) -> list[Action]:
        match event:
            case on.Sent(report=report):
                self._report = report
                after = self._machine.apply(SenderEvent.FLUSHED)
                return self._finish(now) if after is SenderState.DONE else []
            case on.SendBroke(reason=reason, drain=drain):
                self.endpoint_failed = event.endpoint_failed
                self._failure = self._failure or reason
                self._machine.apply(SenderEvent.STOP)
                return self._drained(drain)
            case on.Drained(drain=drain):
                return self._drained(drain)
        return self._stop(f"{type(event).__name__} is not expected on a transfer that is open")

    def _begin(self, now: float) -> list[Action]:
        if self.kind.grants_first:
            self._machine.apply(SenderEvent.ASK)
            self.phases.mark(Phase.GRANTED, now)
            return [do.Reserve()]
        self._machine.apply(SenderEvent.ARRIVE)
        # A message with the prompt is both the gateway's call and the receiver's.
        return [] if self._terms.awaits_gateway else self._meet(now)

    def _meet(self, now: float) -> list[Action]:
        self._machine.apply(SenderEvent.MEET)
        self._repeated_at = now
        return [do.Reserve()]

    def _miss(self) -> list[Action]:
        if not self._machine.allows(SenderEvent.EXPIRE):
            return []
        self._machine.apply(SenderEvent.EXPIRE)
        return self._say_end("the gateway's call did not come", Drain.DRAINED)

    def _moved(self, position: int, now: float) -> list[Action]:
        """Send the changed queue position immediately, unless one was sent a moment ago; then the
        next repetition has it. So a long, fast queue costs each of its transfers few messages."""
        moved, self._position = position != self._position, position
        if not moved or now - self._said_at < _SAID_AGAIN_SECONDS:
            return []
        return self._say_position(now)

    def _want_media(self, payload: Payload) -> list[Action]:
        after = self._machine.apply(SenderEvent.WANT_MEDIA)
        return [do.Say(say.MediaWanted(payload))] if after is SenderState.AWAITING_MEDIA else []

    def _say_position(self, now: float) -> list[Action]:
        if self.state is not SenderState.QUEUED:
            return []
        self._said_at = now
        return [do.Say(say.Queued(self._position or 0))]

    def _refuse(self, refusal: on.Refusal) -> list[Action]:
        if self.kind.grants_first or self.kind.announces is Announces.HELD:
            if self._machine.apply(SenderEvent.REFUSE) is not SenderState.REFUSED:
                return []
            return self._say_refused(refusal)
        if self.state in _BEFORE_LEASE:
            self._machine.apply(SenderEvent.REFUSE)
            if refusal.is_late:
                self.given_up = Loss.QUEUE_TIMEOUT
            return self._say_refused(refusal)
        # The forward broke after the grant: chunks may be in flight.
        return [] if self.state is SenderState.DRAINING else self._stop(refusal.reason)

    def _say_refused(self, refusal: on.Refusal) -> list[Action]:
        if self.kind.grants_first:
            return self._say_end(refusal.reason, Drain.DRAINED)
        return [do.Say(say.Refused(refusal.payload)), *self._end_pull()]

    def _grant(self, grant: say.Grant) -> list[Action]:
        if self._machine.apply(SenderEvent.GRANT) is not SenderState.STREAMING:
            return []
        if grant.generation != self.generation:
            return self._stop(
                f"grant is of generation {grant.generation}, transfer of {self.generation}"
            )
        self._opening = grant
        return [do.Open(grant.destination)]

    def _pinned(self, pinned: on.Pinned) -> list[Action]:
        if self.state is not SenderState.PINNING:
            self._machine.apply(SenderEvent.PINNED)
            return []
        assert self._target is not None
        self._opening = pinned
        return [do.Open(self._target)]

    def _opened(self, now: float) -> list[Action]:
        opening, self._opening = self._opening, None
        match opening:
            case say.Grant(payload=payload):
                self.phases.mark(Phase.GRANTED, now)
                return [do.Start(payload)]
            case on.Pinned(payload=payload):
                self._machine.apply(SenderEvent.PINNED)
                self.phases.mark(Phase.ACCEPTED, now)
                return [do.Plan(payload)]
        return []

    def _failed(self, failed: on.Failed) -> list[Action]:
        opening, self._opening = self._opening, None
        if failed.is_defect:
            return self._stop(f"internal error: {failed.reason}")
        if isinstance(failed.action, do.Open) and isinstance(opening, on.Pinned):
            return self._refuse(on.Refusal(failed.reason))
        return self._stop(failed.reason)

    def _announce(self, payload: Payload, now: float) -> list[Action]:
        after = self._machine.apply(SenderEvent.TOKEN)
        if after is SenderState.DRAINING:
            return []
        self.phases.mark(Phase.READY, now)
        is_token = self.kind.announces is Announces.TOKEN
        word = say.Ready(self.generation, payload) if is_token else say.Held(self.generation)
        return [do.Say(word), *(self._finish(now) if after is SenderState.DONE else ())]

    def _finish(self, now: float) -> list[Action]:
        """Return a successful transfer's last actions: final status, then the end of its pull."""
        assert self._report is not None
        self.phases.mark(Phase.DONE, now)
        final = self._report, sender_track(self._report, self.phases)
        return [do.Say(say.Done(self.generation, self._report.digests, final)), *self._end_pull()]

    # Deadlines

    @property
    def _mark(self) -> tuple[object, ...]:
        """Return a value for comparison; it is different after each progress of the transfer."""
        return self.state, self._looked.progress, self._looked.pulled, self._looked.pieces

    def _look(self, look: on.Look, now: float) -> list[Action]:
        self._looked = look
        state, allowed = self.state, self._terms.deadlines.of(self.state)
        if self._watch.still(self._mark, now) > allowed:
            return self._stalled(state, allowed)
        if state is SenderState.QUEUED and now - self._repeated_at >= self._terms.look:
            # Repeated, because a queued room is not dead.
            self._repeated_at = now
            return self._say_position(now)
        return []

    def _stalled(self, state: SenderState, allowed: float) -> list[Action]:
        if state is SenderState.DRAINING:
            return self._drained(Drain.FORCED)
        if self.kind.grants_first:
            return self._stop(f"nothing moved for {allowed} s: {state.value}")
        waited = state is SenderState.QUEUED
        self.given_up = self.given_up or (Loss.QUEUE_TIMEOUT if waited else Loss.STALLED)
        return self._stop(f"the prefill node gives up: {state.value}, for {allowed} s")

    # The end

    def _stop(self, failure: str | None) -> list[Action]:
        """Stop sending and wait until the posted writes have ended. failure: this side's reason;
        None if the receiver asked for the end. The first reason is kept."""
        before = self.state
        self._failure = self._failure or failure
        after = self._machine.apply(SenderEvent.STOP)
        if after is before:
            return []
        if after is SenderState.ENDED:
            # Nothing was begun, so there is nothing to drain.
            return self._say_end(self._failure, Drain.DRAINED)
        return [do.DrainNow()]

    def _drained(self, drain: Drain) -> list[Action]:
        self._machine.apply(SenderEvent.DRAINED)
        return self._say_end(self._failure, drain)

    def _say_end(self, failure: str | None, drain: Drain) -> list[Action]:
        self.drain = drain
        return [do.Say(say.Ended(drain, failure, self.generation)), *self._end_pull()]

    def _end_pull(self) -> list[Action]:
        return [do.EndPull("its transfer is over")] if self._pulls else []
