"""How far something long has come: told to whoever wants to know."""

from collections.abc import Callable

Progress = Callable[[int, int], None]
"""Told (done, of how many), with done ascending to the whole."""


def no_progress(done: int, whole: int) -> None:
    return None
