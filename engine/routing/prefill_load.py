"""What a prefill engine has still to compute of its rooms' prompts, in seconds, and when that
is to be reported. Thread rule: the engine loop's.

Invariant: once nothing is left to compute, that is reported at once; else at most every
REPORT_SECONDS, but for rooms that come.
"""

import math
from collections.abc import Callable

from tasuki.engine import messages as m
from tasuki.routing.node_load import faded

from .cost_model import Line
from .prefill_speed import PrefillSpeed

REPORT_SECONDS = 0.25


class PrefillLoad:
    def __init__(self, speed: PrefillSpeed) -> None:
        self._speed = speed
        self._left: dict[m.RoomId, float] = {}
        self._peers: dict[m.RoomId, str] = {}
        """Whose room it is."""
        self._stored = 0.0
        self._stored_at = 0.0
        self._new = 0.0
        """Seconds of prefill that forwards took off since the last report."""
        self._changed = True
        self._reported_at = -math.inf

    @property
    def wait(self) -> float:
        """Seconds of prefill that are left."""
        return sum(self._left.values())

    def left(self, room: m.RoomId) -> float:
        """Seconds of prefill that are left of one room's prompt."""
        return self._left.get(room, 0.0)

    @property
    def waits(self) -> dict[str, float]:
        """The same by whose rooms they are."""
        waits: dict[str, float] = {}
        for room, left in self._left.items():
            waits[self._peers[room]] = waits.get(self._peers[room], 0.0) + left
        return waits

    def enter(self, room: m.RoomId, cached: int, tokens: int, peer: str = "") -> None:
        """A prompt of `tokens`, of which `cached` need not be computed. peer: whose room it is."""
        self._peers[room] = peer
        self._left[room] = self._speed.seconds.between(cached, tokens)
        self._changed = True
        self._reported_at = -math.inf

    def computes(self, room: m.RoomId, stop: int, tokens: int) -> None:
        """A forward is about to compute the prompt up to `stop`."""
        if room in self._left:
            before = self._left[room]
            left = self._speed.seconds.between(stop, tokens) if stop < tokens else 0.0
            self._left[room] = min(before, left)
            self._new += before - self._left[room]
            self._changed = True

    def leave(self, room: m.RoomId) -> None:
        """Its prompt is computed, or is not to be any more."""
        if self._left.pop(room, None) is None:
            return
        del self._peers[room]
        self._changed = True
        if not self._left:
            self._reported_at = -math.inf

    def report(self, now: float, pull_seconds: Callable[[], Line | None]) -> m.PrefillLoad | None:
        """Where there is something to report. now: monotonic seconds. pull_seconds: what a pull
        takes, by its tokens, where that is known."""
        if not self._changed or now - self._reported_at < REPORT_SECONDS:
            return None
        self._changed, self._reported_at = False, now
        self._stored = faded(self._stored, now - self._stored_at) + self._new
        self._stored_at, self._new = now, 0.0
        pull = pull_seconds()
        pulled = None if pull is None else (pull.fixed, pull.each)
        return m.PrefillLoad(self.wait, self._speed.seconds, pulled, self._stored, self.waits)
