"""Named signatures of calls between packages."""

from collections.abc import Callable, Mapping
from typing import TypeAlias, TypeVar

Result = TypeVar("Result")

Clock: TypeAlias = Callable[[], float]
"""Return the time now in seconds. The owner names the clock and its zero."""

Notice: TypeAlias = Callable[[], None]
"""Notify of the event in the parameter's name. Returns at once."""

EndNotice: TypeAlias = Callable[[str], None]
"""Called with the reason once something has ended for good. Returns at once."""

Counts: TypeAlias = Callable[[], Mapping[str, int]]
"""Returns counts so far by name."""

Work: TypeAlias = Callable[[], Result]
"""A piece of work for another thread or a later time. Returns its result, or raises."""
