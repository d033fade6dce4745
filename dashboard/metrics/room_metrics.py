"""Counters and histograms of a prefill node's rooms, fed as each room ends.

Borrows its registry. One thread.
"""

from prometheus_client import CollectorRegistry

from tasuki.engine.messages import LossCause, RoomEnded

from .families import PREFILL, QUEUE
from .instruments import Instruments
from .life_spans import prefilled_seconds, queued_seconds


class RoomMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        made = Instruments(registry)
        self._ended = made.counter(
            "rooms_ended", "Prompts prefilled for other nodes, by how they ended.", "outcome"
        )
        for cause in (LossCause.STALLED, LossCause.QUEUE_TIMEOUT):
            self._ended.labels(cause.value)
        self._queue = made.seconds(
            "room_queue", "From a room's arrival until its prompt was computed.", QUEUE
        )
        self._prefill = made.seconds("room_prefill", "Computing the prompt of a room.", PREFILL)

    def observe(self, room: RoomEnded) -> None:
        self._ended.labels(_outcome(room)).inc()
        self._queue.observe(queued_seconds(room.life))
        if room.handed_on:
            self._prefill.observe(prefilled_seconds(room.life))


def _outcome(room: RoomEnded) -> str:
    if room.given_up is not None:
        return room.given_up.value
    return "handed_on" if room.handed_on else "given_up"
