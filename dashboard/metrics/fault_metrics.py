"""Counters of lost hand-overs, and how long their granted pages stayed out of use.

Borrows its registry; owns the rooms that wait for their fence. One thread.
"""

import time
from collections.abc import Callable

from prometheus_client import CollectorRegistry

from tasuki.engine.messages import (
    HandoverCancelled,
    HandoverFailed,
    LossCause,
    RoomId,
    WriterFenced,
)

from .families import FENCE
from .instruments import Instruments

# What moved was not lost: it is counted with the choices.
_LOSSES = [cause for cause in LossCause if cause is not LossCause.MOVED]
# Rooms lost before a grant are never fenced; they are forgotten when so many others came.
_REMEMBERED = 4096


class FaultMetrics:
    def __init__(
        self, registry: CollectorRegistry, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        made = Instruments(registry)
        self._lost = made.counter(
            "handovers_lost",
            "Hand-overs that failed, by cause; their prompts went elsewhere or were computed here.",
            "cause",
        )
        for cause in _LOSSES:
            self._lost.labels(cause.value)
        self._cancelled = made.counter(
            "handovers_cancelled",
            "Hand-overs given up: the client went away, or the first token was the answer.",
        )
        self._fences = made.seconds(
            "fence", "From a room's loss until its writer was certain to write no more.", FENCE
        )
        self._open: dict[RoomId, float] = {}

    def observe(self, message: HandoverFailed | HandoverCancelled | WriterFenced) -> None:
        match message:
            case HandoverFailed(room=room, cause=cause):
                if cause in _LOSSES:
                    self._lost.labels(cause.value).inc()
                self._begin(room)
            case HandoverCancelled(room=room):
                self._cancelled.inc()
                self._begin(room)
            case WriterFenced(room=room):
                began = self._open.pop(room, None)
                if began is not None:
                    self._fences.observe(self._clock() - began)

    def _begin(self, room: RoomId) -> None:
        self._open[room] = self._clock()
        if len(self._open) > _REMEMBERED:
            del self._open[next(iter(self._open))]
