"""When the next forward is planned, while one is in flight.

A late plan takes in the requests that arrive during the forward in flight. With an early plan a new
request waits for the rest of that forward and for the whole next one.

Owns the times of the last forwards by size, and how long before a forward's end the next plan
begins. Thread rule: the engine loop's.
Invariants: the next plan begins at once where the time of the forward in flight is not known. The
lead grows by a third whenever the device ran out of work behind a late plan, and shrinks by a
thousandth with every other forward: one forward of some 300 begins late.
"""

import time
from collections import defaultdict, deque
from collections.abc import Callable

from .scheduled_forward import ScheduledForward

_KNOWN_FROM = 3
"""Forwards of one size, until their time is known."""
_REMEMBERED = 8
"""Forwards of one size. The shortest of them counts."""
_LEAST_SLACK = 0.0003
_FIRST_SLACK = 0.001
_MOST_SLACK = 0.1
_GROWTH = 1.33
_DECAY = 0.999
_LEAST_IDLE = 0.0001
"""Seconds without work that copies and launches cost the device anyway."""
_IDLE_SHARE = 0.01
"""Part of a forward's time that its device may be without work before it."""


class PlanningTime:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """clock: seconds."""
        self._clock = clock
        self._seconds: dict[tuple[int, int], deque[float]] = defaultdict(
            lambda: deque(maxlen=_REMEMBERED)
        )
        self._planning = 0.0
        """Seconds that the longest of the latest plans took until it was launched."""
        self._slack = _FIRST_SLACK
        self._due: float | None = None
        self._in_flight: ScheduledForward | None = None

    def launched(self, forward: ScheduledForward, seconds: float) -> None:
        """Record a forward that was just launched. seconds: to plan and launch it."""
        self._planning = max(seconds, self._planning * _DECAY)
        self._in_flight = forward
        self._begin()

    def landed(self, forward: ScheduledForward, busy: float, idle: float, *, late: bool) -> None:
        """Record a forward that has ended. busy: seconds that the device computed it; idle: that
        the device had no work before it. late: its plan had waited for newcomers."""
        self._seconds[_size(forward)].append(busy)
        if late and idle > max(_LEAST_IDLE, _IDLE_SHARE * busy):
            self._slack = min(_MOST_SLACK, self._slack * _GROWTH)
        else:
            self._slack = max(_LEAST_SLACK, self._slack * _DECAY)
        if forward is self._in_flight:
            self._in_flight = None
        self._begin()

    @property
    def wait(self) -> float:
        """Seconds until the next forward should be planned; 0.0: now."""
        return 0.0 if self._due is None else max(0.0, self._due - self._clock())

    def _begin(self) -> None:
        """The forward in flight, if any, begins now on the device."""
        self._due = None
        if self._in_flight is None:
            return
        known = self._seconds.get(_size(self._in_flight), ())
        if len(known) >= _KNOWN_FROM:
            self._due = self._clock() + min(known) - self._planning - self._slack


def _size(forward: ScheduledForward) -> tuple[int, int]:
    """Return a key that forwards have in common if they take about the same time."""
    return len(forward).bit_length(), forward.prompt_tokens.bit_length()
