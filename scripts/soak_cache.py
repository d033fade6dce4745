"""`make soak-cache SECONDS=600`: random lives of the tree against the oracle of its tests.

Owns the clock and the count; the lives and what must hold in them are the test's (TreeMachine).
Each round is one seed, printed before it starts: `SEED=n` begins with the round that failed.
"""

import argparse
import time

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.cache.test_tree_state_machine import TreeMachine

HISTORIES_A_ROUND = 500


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    histories = steps = 0

    class Counted(TreeMachine):
        """Counts; adds no rule."""

        def __init__(self) -> None:
            nonlocal histories
            super().__init__()
            histories += 1

        def check_invariants(self, *args: object, **named: object) -> None:
            nonlocal steps
            steps += 1
            super().check_invariants(*args, **named)

    began = time.monotonic()
    number = options.seed
    while time.monotonic() - began < options.seconds:
        print(f"seed {number}: {histories} histories, {steps} checked steps so far", flush=True)
        run_state_machine_as_test(
            seed(number)(Counted),
            settings=settings(
                max_examples=HISTORIES_A_ROUND,
                stateful_step_count=80,
                deadline=None,
                database=None,
                phases=(Phase.generate, Phase.shrink),
                suppress_health_check=list(HealthCheck),
            ),
        )
        number += 1
    took = time.monotonic() - began
    print(f"{histories} histories, {steps} steps in {took:.0f} s, every invariant held after each")


if __name__ == "__main__":
    main()
