"""`python -m scripts.sweep`: SIGKILL at every place and every window of a hand-over, on both sides,
with real daemons; the tokens must be right, the other side at rest, the death noticed in a second.

Exit status 0 only if all of it held at every point.
"""

import argparse
import sys
import time

from scripts.sweep.deaths import Death
from scripts.sweep.points import Point, every_point, sample
from scripts.sweep.sweep import sweep


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.sweep", description=__doc__)
    parser.add_argument("--seed", type=int, default=None, help="a sample instead of all points")
    parser.add_argument(
        "--more", type=int, default=10, help="of a sample: beside one of each phase"
    )
    arguments = parser.parse_args()
    begun = time.monotonic()

    def say(death: Death) -> None:
        print(
            f"{death.point}: noticed in {1000 * death.noticed:.0f} ms, at rest in "
            f"{1000 * death.rested:.0f} ms{', prefilled anew' if death.fell_back else ''}",
            flush=True,
        )

    def choose(windows: int) -> tuple[Point, ...]:
        if arguments.seed is None:
            return every_point(windows)
        return sample(windows, arguments.seed, arguments.more)

    result = sweep(choose, say)
    for trouble in result.troubles:
        print(trouble)
    print(f"sweep: {result}, {time.monotonic() - begun:.0f} s", flush=True)
    return 1 if result.troubles else 0


if __name__ == "__main__":
    sys.exit(main())
