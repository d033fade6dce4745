"""The step counter: how many layers, of any kind, an engine has finished since it started.

Owns one monotone integer and the times of its last ticks. Does not know forwards, layers or rooms.
Thread rule: one thread ticks, any thread reads, waits and subscribes.
Invariants: the value only grows; listeners run on the ticking thread and must return at once.
"""

import threading
import time
from collections import deque
from collections.abc import Callable

REMEMBERED_TICKS = 4096


class StepCounter:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._value = 0
        self._times: deque[float] = deque(maxlen=REMEMBERED_TICKS)
        self._changed = threading.Condition()
        self._listeners: list[Callable[[], None]] = []

    @property
    def value(self) -> int:
        return self._value

    def tick(self) -> None:
        """One more layer is finished: its KV and state may be read by others from now on."""
        with self._changed:
            self._times.append(self._clock())
            self._value += 1
            self._changed.notify_all()
        for listener in self._listeners:
            listener()

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
        with self._changed:
            age = self._value - tick
            if tick < 1 or not 0 <= age < len(self._times):
                return None
            return self._times[-1 - age]
