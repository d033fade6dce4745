"""`python -m scripts.soak --seconds 3600`: random requests and faults against real daemons.

Prints its seed first; the same seed asks and breaks the same things in the same order. Exit status
0 only with no wrong token, no leak and no unexpected error.
"""

import argparse
import random
import sys

from scripts.soak.rounds import soak


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--seed", type=int, default=None, help="drawn and printed if not given")
    parser.add_argument("--first-round", type=int, default=0, help="one that failed")
    parser.add_argument("--storm-clients", type=int, default=500)
    arguments = parser.parse_args()
    seed = random.SystemRandom().randrange(2**32) if arguments.seed is None else arguments.seed
    print(f"soak: --seed {seed} --first-round {arguments.first_round}", flush=True)
    tally = soak(
        arguments.seconds,
        seed,
        arguments.first_round,
        arguments.storm_clients,
        lambda line: print(line, flush=True),
    )
    for trouble in tally.troubles:
        print(trouble)
    print(f"soak: {'PASSED' if tally.good else 'FAILED'}, seed {seed}: {tally}", flush=True)
    return 0 if tally.good else 1


if __name__ == "__main__":
    sys.exit(main())
