"""The step counter: of how many layers, of any kind, an engine has written KV and state for good
since it started.

Owns one monotone integer, the times of its last ticks and of the ends of forwards. Does not know
layers or rooms. Thread rule: one thread ticks, any thread reads, waits and subscribes.
Invariants: the value only grows; listeners run on the ticking thread and must return at once.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable

REMEMBERED_TICKS = 4096
_REMEMBERED_ENDS = 256


class StepCounter:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._value = 0
        self._times: deque[float] = deque(maxlen=REMEMBERED_TICKS)
        self._ends: deque[tuple[int, float]] = deque(maxlen=_REMEMBERED_ENDS)
        self._changed = threading.Condition()
        self._listeners: list[Callable[[], None]] = []

    @property
    def value(self) -> int:
        return self._value

    def tick(self) -> None:
        """One more layer's KV and state are written: others may read them from now on."""
        with self._changed:
            self._times.append(self._clock())
            self._value += 1
            self._changed.notify_all()
        for listener in self._listeners:
            listener()

    def end_forward(self) -> None:
        """The forward whose layers ticked last has computed its last layer."""
        with self._changed:
            self._ends.append((self._value, self._clock()))

    def end_of(self, tick: int) -> float:
        """When the forward that ticked it had ended: math.inf while it runs. The tick's own time
        where nobody has reported an end yet; -math.inf where that is forgotten too."""
        with self._changed:
            known = next((at for value, at in self._ends if value >= tick), None)
            if known is not None:
                return known
            if self._ends:
                return math.inf
        own = self.time_of(tick)
        return -math.inf if own is None else own

    def subscribe(self, listener: Callable[[], None]) -> None:
        """`listener` is called after every tick, on the ticking thread."""
        self._listeners = [*self._listeners, listener]

    def wait_for(self, tick: int, timeout: float) -> bool:
        """Block until the value is at least `tick` or `timeout` seconds are over; whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: self._value >= tick, timeout)

    def time_of(self, tick: int) -> float | None:
        """When the value became `tick`, seconds of the counter's clock; None if too long ago or yet
        to come."""
        (time_of_it,) = self.times_of(tick, tick + 1)
        return time_of_it

    def times_of(self, first: int, end: int) -> list[float | None]:
        """time_of() of ticks [first, end)."""
        with self._changed:
            value, times = self._value, self._times
            oldest = max(1, value - len(times) + 1)
            return [
                times[tick - value - 1] if oldest <= tick <= value else None
                for tick in range(first, end)
            ]
