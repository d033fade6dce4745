"""Named signatures of the calls that several rooms pass to each other."""

from collections.abc import Callable, Mapping
from typing import TypeAlias, TypeVar

Result = TypeVar("Result")

Clock: TypeAlias = Callable[[], float]
"""Returns the time now in seconds. Its owner says from when on, and by which clock."""

Notice: TypeAlias = Callable[[], None]
"""Called once something has happened that the parameter's name says. Returns at once."""

EndNotice: TypeAlias = Callable[[str], None]
"""Called with the reason once something has ended for good. Returns at once."""

Counts: TypeAlias = Callable[[], Mapping[str, int]]
"""Returns counts so far by name."""

Work: TypeAlias = Callable[[], Result]
"""A piece of work for another thread or a later time. Returns its result, or raises."""
