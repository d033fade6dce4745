"""`make mutate SEED=1 SAMPLE=150 SECONDS=3600`: are there tests that would notice?

Tries a seeded sample of small wrong changes, each in a copy of the tree, against the tests next to
what is changed. Goes on where it was stopped. Exit status 1 where a mutant survives that
docs/testing.md does not show to be equivalent.
"""

import argparse
import math
import random
import resource
import sys
from collections import Counter
from pathlib import Path

from scripts.mutate.campaign import Campaign, run
from scripts.mutate.mutant import Status
from scripts.mutate.results import Verdict
from scripts.mutate.targets import Aim, aims

_ROOT = Path(__file__).parents[2]
_MOST_BYTES = 8 << 30
"""Of each process: a loop that is changed may allocate for ever, and take the machine with it."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.mutate", description=__doc__)
    parser.add_argument("--seed", type=int, default=None, help="drawn and printed if not given")
    parser.add_argument("--sample", type=int, default=150)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--results", type=Path, default=_ROOT / "build" / "mutate" / "results.jsonl"
    )
    parser.add_argument("--only", default="", help="keys that begin with this")
    parser.add_argument("--list", action="store_true", help="show the mutants, try none")
    options = parser.parse_args()
    found = [aim for aim in aims(_ROOT) if aim.mutant.key.startswith(options.only)]
    if options.list:
        for aim in found:
            print(_line(aim))
        return 0
    seed = random.SystemRandom().randrange(2**32) if options.seed is None else options.seed
    campaign = Campaign(
        _ROOT, options.results, seed, options.sample, options.seconds, options.workers
    )
    print(f"mutate: seed {seed}, {options.sample} of {len(found)} mutants", flush=True)
    resource.setrlimit(resource.RLIMIT_DATA, (_MOST_BYTES, _MOST_BYTES))
    verdicts = run(campaign, found, lambda line: print(line, flush=True))
    print(table(verdicts))
    lives = (Status.SURVIVED.value, Status.UNNOTICED.value)
    survivors = [verdict for verdict in verdicts if verdict.status in lives]
    for verdict in survivors:
        print(f"{verdict.status}: {verdict.key}: {verdict.change}")
    low, high = interval(len(verdicts) - len(survivors), len(verdicts))
    print(f"mutate: caught or equivalent {low:.1%} to {high:.1%} of all, with 95% confidence")
    print(f"mutate: seed {seed}, {len(verdicts)} tried, {len(survivors)} survived unexplained")
    return 1 if survivors else 0


def table(verdicts: list[Verdict]) -> str:
    """By area, as docs/testing.md shows it."""
    shown = (
        *(Status.CAUGHT, Status.TIMEOUT, Status.SURVIVED, Status.UNNOTICED),
        Status.EQUIVALENT,
    )
    rows = [["area", "mutants", *(status.value for status in shown)]]
    rows.append(["---"] * len(rows[0]))
    areas = list(dict.fromkeys(verdict.area for verdict in verdicts))
    for area in (*areas, "all"):
        of_area = [verdict for verdict in verdicts if area in (verdict.area, "all")]
        counts = Counter(verdict.status for verdict in of_area)
        rows.append([area, str(len(of_area)), *(str(counts[status.value]) for status in shown)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def interval(good: int, tried: int) -> tuple[float, float]:
    """Wilson's, of the share that a sample stands for, at 95%."""
    if tried == 0:
        return 0.0, 1.0
    z = 1.96
    share, weight = good / tried, 1 + z * z / tried
    middle = share + z * z / (2 * tried)
    spread = z * math.sqrt(share * (1 - share) / tried + (z / (2 * tried)) ** 2)
    return (middle - spread) / weight, (middle + spread) / weight


def _line(aim: Aim) -> str:
    return f"{aim.mutant.key}: {aim.mutant.edit.shown((_ROOT / aim.path).read_bytes())}"


if __name__ == "__main__":
    sys.exit(main())
