"""What one connection costs, seconds a window and seconds a byte, learnt from what it flushed.

Owns decayed sums of (bytes, seconds) and what is in flight. Knows no rooms and no layers. The
seconds of a window are those since it was posted or since the flush before it, whichever is later:
alone on the link it pays the link's latency, in a queue only its share of the wire. Two windows of
different size show latency and speed apart; windows of one size show their mean alone.
Thread rule: the transfer thread changes it, any thread reads it.
"""

from dataclasses import dataclass

_KEPT = 0.95
"""Of what was learnt, for each window more: the last twenty decide."""
_LEAST_SPREAD = 0.05
"""Of the sizes, as a share of their mean, from which on a slope means something."""

_SLACK = 4.0
_SLOWEST_BYTE_SECONDS = 1e-6
"""Believed of a link of which nothing is known, where the question is whether it stands still."""


@dataclass(frozen=True)
class LinkSpeed:
    """seconds(bytes) = window_seconds + bytes * byte_seconds. spread: whether windows of different
    sizes were seen, so that the two are known apart."""

    window_seconds: float
    byte_seconds: float
    mean_bytes: float
    spread: bool


class LinkCost:
    def __init__(self) -> None:
        self.in_flight_bytes = 0
        self.last_flush = float("-inf")
        self.newest_flushed = float("-inf")
        """When the window that was posted last, of those flushed, had been posted."""
        self._weight = 0.0
        self._bytes = 0.0
        self._seconds = 0.0
        self._bytes_bytes = 0.0
        self._bytes_seconds = 0.0
        self.cost: LinkSpeed | None = None
        """None until a window with bytes was flushed."""

    def seconds_for(self, size: int) -> float | None:
        """How long `size` bytes take with nothing before them; None until something is known."""
        cost = self.cost
        return None if cost is None else cost.window_seconds + size * cost.byte_seconds

    def patience(self) -> float:
        """Seconds in which what is in flight should have been flushed several times over."""
        size = self.in_flight_bytes
        known = self.seconds_for(size)
        return _SLACK * (size * _SLOWEST_BYTE_SECONDS if known is None else known)

    def posted(self, size: int) -> None:
        self.in_flight_bytes += size

    def gone(self, size: int) -> None:
        """A posted window failed or was given up."""
        self.in_flight_bytes -= size

    def flushed(self, size: int, posted_at: float, now: float) -> None:
        """Posted windows of `size` bytes together, the first at posted_at, were found to be there;
        times are of one monotonic clock."""
        self.in_flight_bytes -= size
        seconds = now - max(posted_at, self.last_flush)
        self.last_flush = max(self.last_flush, now)
        self.newest_flushed = max(self.newest_flushed, posted_at)
        # A notification alone says nothing of bytes.
        if size and seconds > 0:
            self._learn(float(size), seconds)

    def _learn(self, size: float, seconds: float) -> None:
        self._weight = self._weight * _KEPT + 1.0
        self._bytes = self._bytes * _KEPT + size
        self._seconds = self._seconds * _KEPT + seconds
        self._bytes_bytes = self._bytes_bytes * _KEPT + size * size
        self._bytes_seconds = self._bytes_seconds * _KEPT + size * seconds
        mean_bytes, mean_seconds = self._bytes / self._weight, self._seconds / self._weight
        variance = self._bytes_bytes / self._weight - mean_bytes**2
        covariance = self._bytes_seconds / self._weight - mean_bytes * mean_seconds
        spread = variance > (_LEAST_SPREAD * mean_bytes) ** 2
        whole = mean_seconds / mean_bytes
        slope = min(max(covariance / variance, 0.01 * whole), whole) if spread else whole
        latency = max(0.0, mean_seconds - slope * mean_bytes)
        self.cost = LinkSpeed(latency, slope, mean_bytes, spread)
