"""Deadlines of a transfer: the longest time without progress in each state, on each side.

Values are in seconds. Only progress as defined in docs/hand-over.md restarts a state's time.
Neither a heartbeat nor a Queued message with an unchanged position is progress. Pure: the caller
gives the time. Invariant: every state waiting for a party has a deadline, so every transfer ends.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import Self

QUEUE_SECONDS = 60.0
"""Default of the flag --queue-timeout, in seconds."""
_ENGINE_FIRST = 5.0
"""Seconds added to the engine's own queue timeout, so the engine rejects a late prompt first and
gives the reason. The longer deadline is for an engine without such a rejection."""


class StateDeadlines:
    """Deadlines by state, in seconds. A field bounds the state of the same name in upper case."""

    def of(self, state: Enum) -> float:
        """Return the state's deadline in seconds; infinite if the state waits for no party."""
        seconds: float = getattr(self, state.name.lower(), inf)
        return seconds


@dataclass(frozen=True)
class ReceiverDeadlines(StateDeadlines):
    """Deadlines of a transfer's receiver, a decode node, in seconds.

    reserved: limit for an unchanged position in the sender's queue, and without a piece of a
    picture taken by it. queue: limit for the total time in the sender's queue, not counting the
    time of a pull and of pictures; also the limit from the destination's message until the first
    layer chunk. accepted: limit for this node's engine to grant memory. granted, ready: limit
    without an arrived layer chunk; before the first one, chunks of the sender's other transfers
    count too. verifying: limit for the comparison of digests; longer than HandoverSettings.landing.
    look: time between two checks.
    """

    reserved: float = 30.0
    queue: float = QUEUE_SECONDS
    accepted: float = 30.0
    granted: float = 30.0
    ready: float = 30.0
    verifying: float = 15.0
    look: float = 1.0


@dataclass(frozen=True)
class SenderDeadlines(StateDeadlines):
    """Deadlines of a transfer's sender, a prefill node, in seconds.

    parked: limit for the second of two calls, the gateway's or the receiver's; longer than the
    gateway's own. queued: a little longer than the engine's limit, because the engine gives the
    reason. awaiting_media: limit without a piece of the wanted pictures. accepted: limit for the
    receiver to grant memory; longer than the receiver's own, because the receiver has the reason.
    streaming: limit without a finished layer or a flushed chunk. ready: limit without a flushed
    chunk. holding: limit for the first token. draining: longer than SenderSettings.drain_seconds;
    after it the drain counts as forced.
    """

    parked: float = 20.0
    queued: float = QUEUE_SECONDS + _ENGINE_FIRST
    awaiting_media: float = 30.0
    accepted: float = 45.0
    streaming: float = QUEUE_SECONDS + _ENGINE_FIRST
    ready: float = 30.0
    holding: float = 60.0
    draining: float = 10.0

    @classmethod
    def behind(cls, queue_seconds: float) -> Self:
        """Return deadlines a little longer than the engine's own queue timeout. queue_seconds: the
        engine's --queue-timeout."""
        in_all = queue_seconds + _ENGINE_FIRST
        return cls(queued=in_all, streaming=max(cls.streaming, in_all))


@dataclass(frozen=True)
class PullReceiverDeadlines(StateDeadlines):
    """Deadlines of a pull's receiver, a prefill node, in seconds.

    granted: limit without an arrived layer chunk. landing: limit from the sender's final message
    until the last chunk arrives. verifying: limit for the comparison of digests. look: time between
    two checks.
    """

    granted: float = 5.0
    landing: float = 2.0
    verifying: float = 10.0
    look: float = 0.25


@dataclass(frozen=True)
class PullSenderDeadlines(StateDeadlines):
    """Deadlines of a pull's sender, a decode node, in seconds.

    pinning: limit for this node's engine to pin the state or reject. streaming: limit without a
    flushed layer chunk. draining: longer than SenderSettings.drain_seconds; after it the drain
    counts as forced. look: time between two checks.
    """

    pinning: float = 10.0
    streaming: float = 30.0
    draining: float = 10.0
    look: float = 1.0


class ProgressWatch:
    """Clock of a transfer's time without progress. The caller gives a mark, a value different after
    each progress.

    Invariant: the time between two checks counts as two check periods at most. So a formerly frozen
    node, or one with a busy loop, does not judge others by its own gap.
    """

    def __init__(self, look: float, now: float) -> None:
        """look: seconds between two checks of progress."""
        self._longest = 2 * look
        self._mark: Hashable = None
        self._looked = now
        self._still = 0.0

    def still(self, mark: Hashable, now: float) -> float:
        """Return the seconds since the mark last changed. Call it at each check. mark: value
        different after each progress."""
        passed, self._looked = min(now - self._looked, self._longest), now
        if mark == self._mark:
            self._still += passed
        else:
            self._mark, self._still = mark, 0.0
        return self._still
