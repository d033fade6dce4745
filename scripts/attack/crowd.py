"""Many callers at once."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor


def at_once(callers: int, calls: Sequence[Callable[[], object]], until: float) -> None:
    """Each call by some caller; what is not begun by `until`, on the monotonic clock, is left, but
    for every caller's first. An attack's own failure is raised."""

    def unless_over(number: int) -> None:
        if number < callers or time.monotonic() < until:
            calls[number]()

    with ThreadPoolExecutor(callers) as pool:
        for done in [pool.submit(unless_over, number) for number in range(len(calls))]:
            done.result()
