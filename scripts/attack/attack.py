"""An attack on running nodes: a name, and a function making tries until its time is up.

Pure. The function records each try and its outcome in the tally, and names forbidden results as
findings. The world checks afterwards the rules common to all attacks: the nodes live, answer
/health, come to rest, give the same tokens. Invariant: every request of an attack has a deadline.
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
    """The context of one run of an attack. world: the attacked daemons. rng: its random generator.
    until: end of new tries, on the monotonic clock. tally: receives tries and findings."""

    world: World
    rng: random.Random
    until: float
    tally: Tally

    def rounds(self) -> Iterator[None]:
        """Yield once for each round of tries: at least once, then until the time is up."""
        yield
        while time.monotonic() < self.until:
            yield

    def at_once(self, callers: int, calls: Sequence[Callable[[], object]]) -> None:
        """Make the calls concurrently. callers: number of threads. Calls not begun when the time is
        up are left out, except each thread's first. An error of a call is raised."""

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
