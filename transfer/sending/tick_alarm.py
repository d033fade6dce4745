"""Wakes the transfer thread when a step counter has reached the tick that it waits for: a forward
ticks for each of its layers, and few of them end a window.

Owns that tick. Knows no rooms. Thread rule: the transfer thread sets, the ticking thread rings.
Invariant: a tick that has come before set() returns is told by set(), one that comes after it
rings.
"""

import math
from collections.abc import Callable

from tasuki.transfer.windows.step_counter import StepCounter


class TickAlarm:
    def __init__(self, steps: StepCounter, ring: Callable[[], None]) -> None:
        """ring: called on the ticking thread, at each tick from the awaited one on."""
        self._steps = steps
        self._ring = ring
        self._awaited = math.inf
        steps.subscribe(self._ticked)

    def set(self, tick: float) -> bool:
        """Await `tick`, math.inf for none; whether it has come already."""
        self._awaited = tick
        return self._steps.value >= tick

    def _ticked(self) -> None:
        if self._steps.value >= self._awaited:
            self._ring()
