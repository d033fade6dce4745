"""Named signatures of calls between packages."""

from collections.abc import Callable, Mapping
from typing import TypeAlias, TypeVar

Result = TypeVar("Result")

Clock: TypeAlias = Callable[[], float]
"""A function returning the time now in seconds. Its owner defines the clock and its zero."""

Notice: TypeAlias = Callable[[], None]
"""A function called when an event happens. The parameter's name gives the event. Returns without a
wait."""

EndNotice: TypeAlias = Callable[[str], None]
"""A function called with the reason once something has ended for good. Returns without a wait."""

Counts: TypeAlias = Callable[[], Mapping[str, int]]
"""A function returning the counts so far, by name."""

Work: TypeAlias = Callable[[], Result]
"""A piece of work for another thread or a later time. Returns its result, or raises."""
