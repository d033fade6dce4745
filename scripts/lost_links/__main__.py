"""`python -m scripts.lost_links --requests 10000`: a stream of new requests while links are lost.

Prints its seed first; the same seed asks and breaks the same things in the same order. Exit status
0 only where every request was answered with the right tokens and nothing is held afterwards.
"""

import argparse
import random
import sys

from scripts.lost_links.stream import StreamSettings, play


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.lost_links", description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=None, help="drawn and printed if not given")
    parser.add_argument("--at-once", type=int, default=16, help="requests in flight")
    parser.add_argument("--patience", type=float, default=1.0, help="factor on deadlines")
    arguments = parser.parse_args()
    seed = random.SystemRandom().randrange(2**32) if arguments.seed is None else arguments.seed
    settings = StreamSettings(arguments.requests, seed, arguments.at_once, arguments.patience)
    print(f"lost links: {settings}", flush=True)
    tally = play(settings, lambda line: print(line, flush=True))
    for trouble in tally.troubles:
        print(trouble)
    print(f"lost links: {'PASSED' if tally.good else 'FAILED'}, seed {seed}: {tally}", flush=True)
    return 0 if tally.good else 1


if __name__ == "__main__":
    sys.exit(main())
