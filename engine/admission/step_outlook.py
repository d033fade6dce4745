"""How long a step of so many answers takes, by what the last ones took.

Knows rows and seconds, no requests. Thread rule: the engine loop's.
Invariants: a step of more rows is never expected to be shorter; what a newer step contradicts is
forgotten, so that answers whose contexts grow are seen; one slow step alone shows nothing where the
one before it had as many rows.
"""

from bisect import bisect_left, bisect_right

_GROWTH = 2
"""So many times the rows that were seen are expected at most."""


class StepOutlook:
    def __init__(self) -> None:
        self._rows: list[int] = []
        self._seconds: list[float] = []
        """Of a step of so many; both rise."""
        self._last = 0, 0.0

    def landed(self, rows: int, seconds: float) -> None:
        """A step of nothing but so many answers, at least one, took so long."""
        before, self._last = self._last, (rows, seconds)
        if before[0] == rows:
            seconds = min(seconds, before[1])
        first = last = bisect_left(self._rows, rows)
        while first and self._seconds[first - 1] >= seconds:
            first -= 1
        while last < len(self._rows) and (
            self._rows[last] == rows or self._seconds[last] <= seconds
        ):
            last += 1
        self._rows[first:last], self._seconds[first:last] = [rows], [seconds]

    def seconds(self, rows: int) -> float | None:
        """None before the first step. Of more rows than were seen: as the steps seen rise, and not
        at all while those were all alike."""
        return self._expected(rows) if self._rows else None

    def fitting(self, seconds: float) -> int:
        """The most rows whose step is expected to take no longer; at least one."""
        if not self._rows:
            return 1
        within = range(1, _GROWTH * self._rows[-1] + 1)
        return max(1, bisect_right(within, seconds, key=self._expected))

    def _expected(self, rows: int) -> float:
        """REQUIRES: a step has landed."""
        place = bisect_left(self._rows, rows)
        if place == 0:
            return self._seconds[0] * rows / self._rows[0]
        low, high = (0, -1) if place == len(self._rows) else (place - 1, place)
        wide = self._rows[high] - self._rows[low]
        each = (self._seconds[high] - self._seconds[low]) / wide if wide else 0.0
        return self._seconds[high] + each * (rows - self._rows[high])
