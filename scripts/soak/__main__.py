"""`python -m scripts.soak --seconds 3600`: random requests and faults against real daemons.

Prints its seed first; the same seed asks and breaks the same things in the same order. Exit status
0 only with no wrong token, no leak and no unexpected error.
"""

import argparse
import random
import sys

from scripts.soak.rounds import SoakSettings, soak


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--seed", type=int, default=None, help="drawn and printed if not given")
    parser.add_argument("--first-round", type=int, default=0, help="one that failed")
    parser.add_argument("--clients", type=int, default=5)
    parser.add_argument("--storm-clients", type=int, default=500)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between rounds")
    parser.add_argument("--patience", type=float, default=1.0, help="factor on deadlines")
    arguments = parser.parse_args()
    seed = random.SystemRandom().randrange(2**32) if arguments.seed is None else arguments.seed
    settings = SoakSettings(
        seconds=arguments.seconds,
        seed=seed,
        first_round=arguments.first_round,
        clients=arguments.clients,
        storm_clients=arguments.storm_clients,
        pause=arguments.pause,
        patience=arguments.patience,
    )
    print(f"soak: {settings}", flush=True)
    tally = soak(settings, lambda line: print(line, flush=True))
    for trouble in tally.troubles:
        print(trouble)
    print(f"soak: {'PASSED' if tally.good else 'FAILED'}, seed {seed}: {tally}", flush=True)
    return 0 if tally.good else 1


if __name__ == "__main__":
    sys.exit(main())
