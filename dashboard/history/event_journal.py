"""The last events in order, for followers: a recorder, or a page's stream.

Owns a bounded ring of numbered events. A follower reads the events from a number on, and gets the
number to go on with; one that is too slow gets the count of missed events. One thread.
"""

from collections import deque
from dataclasses import dataclass

from .events import Event

_REMEMBERED = 8192


@dataclass(frozen=True)
class EventsSince:
    """next: the number to go on with. missed: how many events are forgotten already."""

    events: tuple[Event, ...]
    next: int
    missed: int


class EventJournal:
    def __init__(self) -> None:
        self._events: deque[Event] = deque(maxlen=_REMEMBERED)
        self._count = 0

    @property
    def end(self) -> int:
        """The number that the next event will have."""
        return self._count

    def add(self, event: Event) -> None:
        self._events.append(event)
        self._count += 1

    def since(self, number: int) -> EventsSince:
        first = self._count - len(self._events)
        start = max(number, first)
        fresh = tuple(self._events[index - first] for index in range(start, self._count))
        return EventsSince(fresh, self._count, max(0, first - number))
