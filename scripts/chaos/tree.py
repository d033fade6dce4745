"""A workload of random calls to the prefix tree, compared with the oracle of its tests. Every
invariant is checked at every step.

Owns the clock and the count. The calls and their checks are the test's (TreeMachine). Each round is
one seed, printed before it starts: `--seed N` begins with the failed round.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from scripts.common.tally import Tally
from tasuki.utils.options import option
from tests.cache.test_tree_state_machine import TreeMachine

_HISTORIES_A_ROUND = 500


@dataclass(frozen=True)
class TreeSettings:
    seconds: float = option(3600.0, "how long new rounds begin")
    seed: int = option(1, "of the first round")


def run(asked: TreeSettings, say: Callable[[str], None]) -> Tally:
    """Run rounds until the time is up. Raises the error of a round with a broken invariant;
    hypothesis has printed the round's calls."""
    tally = Tally()

    class Counted(TreeMachine):
        """TreeMachine counting its steps; it adds no rule."""

        def __init__(self) -> None:
            super().__init__()
            tally.count("histories")

        def check_invariants(self, *args: Any, **named: Any) -> None:
            tally.count("checked steps")
            super().check_invariants(*args, **named)

    began = time.monotonic()
    number = asked.seed
    while time.monotonic() - began < asked.seconds:
        say(f"seed {number}: {tally} so far")
        run_state_machine_as_test(
            seed(number)(Counted),
            settings=settings(
                max_examples=_HISTORIES_A_ROUND,
                stateful_step_count=80,
                deadline=None,
                database=None,
                phases=(Phase.generate, Phase.shrink),
                suppress_health_check=list(HealthCheck),
            ),
        )
        number += 1
    return tally
