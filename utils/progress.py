"""Callbacks for the progress of long work."""

from collections.abc import Callable

Progress = Callable[[int, int], None]
"""Called with (done, whole); done ascends to whole."""


def no_progress(done: int, whole: int) -> None:
    """Shows nothing."""
