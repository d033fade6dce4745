"""How long a transfer may stand still in each state, on each side, and for how long one has.

Values of seconds. Only what docs/hand-over.md calls progress begins a state's time anew: a beat
never does, nor does a Queued that repeats its position. Pure: the caller gives the time.
Invariant: every state in which somebody is awaited has a deadline, so that every room ends.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import Self

QUEUE_SECONDS = 60.0
"""What --queue-timeout is where nobody says otherwise."""
_ENGINE_FIRST = 5.0
"""The engine itself refuses what waited too long, and says why; this is for one that does not."""


class StateDeadlines:
    """A field that is named as a state, in lower case, bounds that state."""

    def of(self, state: Enum) -> float:
        """Seconds; infinite where nobody is awaited."""
        seconds: float = getattr(self, state.name.lower(), inf)
        return seconds


@dataclass(frozen=True)
class ReceiverDeadlines(StateDeadlines):
    """Of a room on the decode node. reserved: the position in the sender's queue stays the same;
    queue: in that queue in all, the time of a pull left out, and as long again from the grant until
    its first window. accepted: our own engine grants nothing. granted, ready: no window lands, and
    before its first one none of the sender's other rooms either. verifying: nothing is said of the
    digests; longer than HandoverSettings.landing. look: between two looks."""

    reserved: float = 30.0
    queue: float = QUEUE_SECONDS
    accepted: float = 30.0
    granted: float = 30.0
    ready: float = 30.0
    verifying: float = 15.0
    look: float = 1.0


@dataclass(frozen=True)
class SenderDeadlines(StateDeadlines):
    """Of a room on the prefill node. parked: longer than the gateway's own deadline. queued: a
    little longer than the engine's, which says why. accepted: a lease is held and its receiver
    grants nothing; longer than the receiver's own, which has the reason. streaming: our engine
    finishes no layer and nothing is flushed. ready: nothing is flushed. holding: the first token
    does not come. draining: longer than SenderSettings.drain_seconds; then the drain counts as
    forced."""

    parked: float = 20.0
    queued: float = QUEUE_SECONDS + _ENGINE_FIRST
    accepted: float = 45.0
    streaming: float = QUEUE_SECONDS + _ENGINE_FIRST
    ready: float = 30.0
    holding: float = 60.0
    draining: float = 10.0

    @classmethod
    def behind(cls, queue_seconds: float) -> Self:
        """queue_seconds: the engine's --queue-timeout."""
        in_all = queue_seconds + _ENGINE_FIRST
        return cls(queued=in_all, streaming=max(cls.streaming, in_all))


@dataclass(frozen=True)
class PullReceiverDeadlines(StateDeadlines):
    """Of a pull on the prefill node. granted: nothing lands. landing: from its end's message until
    the last window must have landed. verifying: nothing is said of the digests. look: between two
    looks."""

    granted: float = 5.0
    landing: float = 2.0
    verifying: float = 10.0
    look: float = 0.25


@dataclass(frozen=True)
class PullSenderDeadlines(StateDeadlines):
    """Of a pull on the decode node. pinning: our own engine neither pins nor refuses. streaming:
    nothing is flushed. draining: longer than SenderSettings.drain_seconds; then the drain counts as
    forced. look: between two looks."""

    pinning: float = 10.0
    streaming: float = 30.0
    draining: float = 10.0
    look: float = 1.0


class ProgressWatch:
    """For how long nothing has moved. A mark is how far a room is, and changes as it moves.

    Invariant: time in which nobody looked counts as two looks at most. A node that was frozen, or
    whose loop was busy, does not judge others by its own gap.
    """

    def __init__(self, look: float, now: float) -> None:
        """look: seconds between two looks."""
        self._longest = 2 * look
        self._mark: Hashable = None
        self._looked = now
        self._still = 0.0

    def still(self, mark: Hashable, now: float) -> float:
        """Return the seconds since the mark changed. Call it at each look."""
        passed, self._looked = min(now - self._looked, self._longest), now
        if mark == self._mark:
            self._still += passed
        else:
            self._mark, self._still = mark, 0.0
        return self._still
