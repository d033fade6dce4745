"""Deadlines of a transfer: the longest time without progress in each state, on each side.

Values in seconds. Only progress as defined in docs/hand-over.md restarts a state's time. A
heartbeat never does, nor does a Queued with an unchanged position. Pure: the caller gives the time.
Invariant: every state with an awaited party has a deadline, so every room ends.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import Self

QUEUE_SECONDS = 60.0
"""Default of --queue-timeout in seconds."""
_ENGINE_FIRST = 5.0
"""Seconds of advantage for the engine: it rejects a late prompt itself, with the reason. This
deadline is for an engine without such a rejection."""


class StateDeadlines:
    """Deadlines by state: a field bounds the state with its name in upper case."""

    def of(self, state: Enum) -> float:
        """Return the state's limit in seconds; infinite if no party is awaited."""
        seconds: float = getattr(self, state.name.lower(), inf)
        return seconds


@dataclass(frozen=True)
class ReceiverDeadlines(StateDeadlines):
    """Deadlines of a room on the decode node.

    reserved: limit for an unchanged position in the sender's queue. queue: limit for the total time
    in the queue, without the time of a pull. The same limit holds from the grant until the room's
    first chunk. accepted: limit for this node's engine to grant. granted, ready: limit without an
    arrived chunk; before the first one, chunks of the sender's other rooms count too. verifying:
    limit for the comparison of digests; longer than HandoverSettings.landing. look: seconds between
    two looks.
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
    """Deadlines of a room on the prefill node.

    parked: longer than the gateway's own deadline. queued: a little longer than the engine's,
    because the engine gives the reason. accepted: limit for the receiver to grant; longer than the
    receiver's own, because the receiver has the reason. streaming: limit without a finished layer
    or a flushed chunk. ready: limit without a flushed chunk. holding: limit for the first token.
    draining: longer than SenderSettings.drain_seconds; after it the drain counts as forced.
    """

    parked: float = 20.0
    queued: float = QUEUE_SECONDS + _ENGINE_FIRST
    accepted: float = 45.0
    streaming: float = QUEUE_SECONDS + _ENGINE_FIRST
    ready: float = 30.0
    holding: float = 60.0
    draining: float = 10.0

    @classmethod
    def behind(cls, queue_seconds: float) -> Self:
        """Return the deadlines behind the engine's own. queue_seconds: the engine's
        --queue-timeout."""
        in_all = queue_seconds + _ENGINE_FIRST
        return cls(queued=in_all, streaming=max(cls.streaming, in_all))


@dataclass(frozen=True)
class PullReceiverDeadlines(StateDeadlines):
    """Deadlines of a pull on the prefill node.

    granted: limit without an arrived chunk. landing: time from the end's message until the last
    chunk's arrival. verifying: limit for the comparison of digests. look: seconds between two
    looks.
    """

    granted: float = 5.0
    landing: float = 2.0
    verifying: float = 10.0
    look: float = 0.25


@dataclass(frozen=True)
class PullSenderDeadlines(StateDeadlines):
    """Deadlines of a pull on the decode node.

    pinning: limit for this node's engine to pin or reject. streaming: limit without a flushed
    chunk. draining: longer than SenderSettings.drain_seconds; after it the drain counts as forced.
    look: seconds between two looks.
    """

    pinning: float = 10.0
    streaming: float = 30.0
    draining: float = 10.0
    look: float = 1.0


class ProgressWatch:
    """Clock of the time without progress. A mark is a room's position, and changes as it moves.

    Invariant: the time between two looks counts as two look periods at most. So a formerly frozen
    node, or one with a busy loop, does not judge others by its own gap.
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
