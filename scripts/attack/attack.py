"""An attack: a name, and a function that tries things until its time is up.

Pure. A function notes each try and how it ended in the tally, and calls what must not be a finding;
what holds for all attacks (the nodes live, answer /health, come to rest, give the same tokens) is
judged by the world behind it. Invariant: everything an attack asks has a deadline.
"""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from scripts.attack.tally import Tally
from scripts.attack.world import World


@dataclass(frozen=True)
class Attempt:
    """until: when no new try begins, on the monotonic clock."""

    world: World
    rng: random.Random
    until: float
    tally: Tally

    def rounds(self) -> Iterator[None]:
        """One, and more until the time is up."""
        yield
        while time.monotonic() < self.until:
            yield

    def at_once(self, callers: int, calls: Sequence[Callable[[], object]]) -> None:
        """Each call by some caller; what is not begun when the time is up is left, but for every
        caller's first. An attack's own failure is raised."""

        def unless_over(number: int) -> None:
            if number < callers or time.monotonic() < self.until:
                calls[number]()

        with ThreadPoolExecutor(callers) as pool:
            for done in [pool.submit(unless_over, number) for number in range(len(calls))]:
                done.result()


@dataclass(frozen=True)
class Attack:
    name: str
    try_it: Callable[[Attempt], None]
