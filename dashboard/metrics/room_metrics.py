"""Counters and histograms of a prefill node's rooms, fed as each room ends.

Borrows its registry. One thread.
"""

from prometheus_client import CollectorRegistry, Counter, Histogram
from tasuki.engine.messages import LossCause, RoomEnded

from .families import PREFILL, QUEUE
from .life_spans import prefilled_seconds, queued_seconds


class RoomMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self._ended = Counter(
            "tasuki_rooms_ended",
            "Prompts prefilled for other nodes, by how they ended.",
            ["outcome"],
            registry=registry,
        )
        for cause in (LossCause.STALLED, LossCause.QUEUE_TIMEOUT):
            self._ended.labels(cause.value)
        self._queue = Histogram(
            "tasuki_room_queue_seconds",
            "From a room's arrival until its prompt was computed.",
            buckets=QUEUE,
            registry=registry,
        )
        self._prefill = Histogram(
            "tasuki_room_prefill_seconds",
            "Computing the prompt of a room.",
            buckets=PREFILL,
            registry=registry,
        )

    def observe(self, room: RoomEnded) -> None:
        self._ended.labels(_outcome(room)).inc()
        self._queue.observe(queued_seconds(room.life))
        if room.handed_on:
            self._prefill.observe(prefilled_seconds(room.life))


def _outcome(room: RoomEnded) -> str:
    if room.given_up is not None:
        return room.given_up.value
    return "handed_on" if room.handed_on else "given_up"
