"""What a finished hand-over says of itself: bytes, digests and how much of its time was hidden."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from .window import WindowHeader


class Drain(Enum):
    """How a stopped room's posted transfers ended."""

    DRAINED = "all of them finished or failed: no write can land any more"
    FORCED = "given up after a deadline, or the wire broke: a write may still land"


@dataclass(frozen=True)
class WindowDigest:
    header: WindowHeader
    digest: int


@dataclass(frozen=True)
class WindowTiming:
    """Seconds of the sender's monotonic clock: KV and state of each of its layers written, sending
    begun, given to the transport, flushed."""

    sequence: int
    layers_finished: tuple[float, ...]
    begun: float
    posted: float
    flushed: float
    bytes: int

    @property
    def finished(self) -> float:
        """From then on it could be sent."""
        return self.layers_finished[-1]


@dataclass(frozen=True)
class SendReport:
    """pages: distinct logical pages sent. hidden_seconds: time spent sending before the room's last
    forward ended; exposed_seconds: from there to the last flush."""

    bytes: int
    windows: int
    pages: int
    hidden_seconds: float
    exposed_seconds: float
    digests: tuple[WindowDigest, ...]
    timeline: tuple[WindowTiming, ...]


def split_time(timeline: Sequence[WindowTiming], forward_end: float) -> tuple[float, float]:
    """(hidden, exposed) seconds; overlapping windows count once, idle time between windows not at
    all. forward_end: of the room's last forward; math.inf while it runs."""
    hidden, covered = 0.0, float("-inf")
    for window in sorted(timeline, key=lambda w: w.begun):
        start = max(window.begun, covered)
        end = min(window.flushed, forward_end)
        if end > start:
            hidden += end - start
        covered = max(covered, window.flushed)
    return hidden, max(0.0, covered - forward_end)
