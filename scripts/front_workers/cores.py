"""Which cores a node and its clients run on. Linux."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager


def cores_of(text: str) -> list[int]:
    """Return the cores that a list such as 0-7,12 names. Raises ValueError."""
    cores: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        cores += range(int(first), int(last or first) + 1)
    return cores


@contextmanager
def pinned(cores: Sequence[int]) -> Iterator[None]:
    """Inside, this thread and the processes that it starts run on these cores; none: on any."""
    if not cores:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
