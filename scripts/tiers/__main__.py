"""`make soak-tiers`: exit status 1 where a token, or a byte that a turn starts from, is wrong."""

import argparse
import logging
import time

from . import forwards
from .ids_and_bytes import Turns


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--loads", type=int, default=10_000, help="with forwards")
    parser.add_argument("--copies", type=int, default=1_000_000, help="in ids and bytes alone")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    # Copies that fail on purpose say so.
    logging.disable(logging.ERROR)
    wrong = 0
    if options.copies:
        began, turns = time.monotonic(), Turns(options.seed)
        turns.play(options.copies)
        out, faults = turns.outcome, dict(turns.faults.made)
        seconds = time.monotonic() - began
        print(
            f"ids and bytes: {out.turns} turns, {out.loads} loads in {seconds:.0f} s, "
            f"{[its.loads for its in turns.tier.counters]}, faults {faults}: {out.wrong} wrong",
            flush=True,
        )
        wrong += out.wrong
        turns.tier.close(60.0)
    if options.loads:
        began = time.monotonic()
        tiered, made, asked, bad = forwards.play(options.seed, options.loads)
        seconds = time.monotonic() - began
        print(
            f"forwards: {asked} turns in {seconds:.0f} s, {tiered.report.loads}, "
            f"faults {dict(made.made)}: {bad} wrong",
            flush=True,
        )
        wrong += bad
        tiered.close()
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
