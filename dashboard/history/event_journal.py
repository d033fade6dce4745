"""The last events in order, for followers: a recorder, or a page's stream.

Owns a bounded ring of numbered events. A follower reads the events from a number on, and gets the
number to go on with; one that is too slow gets the count of missed events. All but the freshest,
which most followers read, are kept as bytes: a fifth of what their dicts hold. One thread.
"""

from collections import deque
from dataclasses import dataclass
from itertools import islice

import msgspec

from .events import Event

_REMEMBERED = 8192
_FRESH = 512


@dataclass(frozen=True)
class EventsSince:
    """next: the number to go on with. missed: how many events are forgotten already."""

    events: tuple[Event, ...]
    next: int
    missed: int


class EventJournal:
    def __init__(self) -> None:
        self._packed: deque[bytes] = deque(maxlen=_REMEMBERED - _FRESH)
        self._fresh: deque[Event] = deque()
        self._count = 0

    @property
    def end(self) -> int:
        """The number that the next event will have."""
        return self._count

    def add(self, event: Event) -> None:
        self._fresh.append(event)
        if len(self._fresh) > _FRESH:
            self._packed.append(msgspec.msgpack.encode(self._fresh.popleft()))
        self._count += 1

    def since(self, number: int) -> EventsSince:
        fresh_from = self._count - len(self._fresh)
        first = fresh_from - len(self._packed)
        start = max(number, first)
        packed = islice(self._packed, start - first, None)
        fresh = islice(self._fresh, max(0, start - fresh_from), None)
        events = (*map(msgspec.msgpack.decode, packed), *fresh)
        return EventsSince(events, self._count, max(0, first - number))
