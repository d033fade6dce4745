"""`python -m scripts.load --streams 256 --seconds 300`: conversations on a pair, all at once.

Exit status 0 only where no turn was lost, both nodes came to rest, and neither's memory grew after
its warm-up. Traffic stays on loopback and ends by itself.
"""

import argparse
import asyncio
import sys

from scripts.load.load import load
from scripts.load.nodes import Nodes


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.load", description=__doc__)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument(
        "--arena-mib", type=int, default=192, help="small enough to be full before memory is judged"
    )
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with Nodes(arguments.arena_mib) as nodes:
        tally = asyncio.run(
            load(
                nodes,
                arguments.streams,
                arguments.seconds,
                arguments.seed,
                say=lambda line: print(line, flush=True),
            )
        )
        nodes.assert_at_rest()
    flat = all(trail.is_flat() for trail in tally.memory.values())
    print(f"load: {'PASSED' if tally.good and flat else 'FAILED'}: {tally}", flush=True)
    return 0 if tally.good and flat else 1


if __name__ == "__main__":
    sys.exit(main())
