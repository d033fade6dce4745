"""`python -m tests.simulation [--transfers N] [--seed S]`: play histories of a pair, and count."""

import argparse
import logging
import time

from .history import TRANSFERS, Tally, play
from .world import Fault


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--transfers", type=int, default=10_000, help="transfers to play at least")
    parser.add_argument("--seed", type=int, default=1, help="of the first history")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    begun, tally, seed = time.process_time(), Tally(), arguments.seed
    while tally.transfers < arguments.transfers:
        tally.add(play(seed, TRANSFERS))
        seed += 1
    seconds = time.process_time() - begun
    print(f"seeds {arguments.seed} to {seed - 1}: {tally.transfers} transfers, {seconds:.1f} s")
    print(f"  {tally.steps} steps, {60 * tally.transfers / seconds:.0f} transfers a minute")
    share = tally.touched / max(1, tally.rooms)
    print(f"  {tally.rooms} rooms, {share:.0%} of them with a fault")
    for name, count in sorted(tally.kinds.items()):
        print(f"  {name:22} {count}")
    for fault in Fault:
        print(f"  {fault.name.lower():22} {tally.faults[fault]}")
    for outcome, count in tally.outcomes.most_common():
        print(f"  {outcome.value:22} {count}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
