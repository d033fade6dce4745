"""`python -m tests.simulation [--transfers N] [--seed S] [--defects]`: plays random histories of
two simulated nodes and counts events, or finds a seed for each defect."""

import argparse
import logging
import time

from .defects import DEFECTS
from .history import TRANSFERS, Tally, play
from .world import Fault, Violation

_MOST_SEEDS = 500


def find_defects() -> None:
    """Find a seed exposing each hand-made defect, and print it as a row of FOUND_BY."""
    for name, defect in DEFECTS.items():
        with defect.applied():
            print(f'        "{name}": {_first_that_fails()},', flush=True)


def _first_that_fails() -> int | None:
    for seed in range(1, _MOST_SEEDS):
        try:
            play(seed)
        except Violation:
            return seed
    return None


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--transfers", type=int, default=10_000, help="transfers to play at least")
    parser.add_argument("--seed", type=int, default=1, help="of the first history")
    parser.add_argument("--defects", action="store_true", help="look for seeds of defects")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    if arguments.defects:
        find_defects()
        return 0
    begun, tally, seed = time.process_time(), Tally(), arguments.seed
    while tally.transfers < arguments.transfers:
        tally.add(play(seed, TRANSFERS))
        seed += 1
    seconds = time.process_time() - begun
    print(f"seeds {arguments.seed} to {seed - 1}: {tally.transfers} transfers, {seconds:.1f} s")
    print(f"  {tally.steps} steps, {60 * tally.transfers / seconds:.0f} transfers a minute")
    share = tally.touched / max(1, tally.requested)
    print(f"  {tally.requested} rooms, {share:.0%} of them with a fault")
    for name, count in sorted(tally.kinds.items()):
        print(f"  {name:22} {count}")
    for fault in Fault:
        print(f"  {fault.name.lower():22} {tally.faults[fault]}")
    for outcome, count in tally.outcomes.most_common():
        print(f"  {outcome.value:22} {count}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
