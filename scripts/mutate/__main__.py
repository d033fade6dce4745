"""`python -m scripts.mutate --seed 1 --sample 150`: a mutation test of the tests.

Tries a seeded sample of small wrong changes, each in a copy of the tree, against the tests next to
the changed code. Continues from an interrupted run. Exit status 1 if a mutant survives, unless
equivalents.toml shows it to be equivalent.
"""

import math
import resource
import sys
from collections import Counter
from collections.abc import Sequence

from scripts.common.command import head, row, settings_of, show
from scripts.mutate.campaign import Campaign, run
from scripts.mutate.mutant import Status
from scripts.mutate.results import Verdict
from scripts.mutate.targets import ROOT, aims

_MOST_BYTES = 8 << 30
"""Memory limit of each process, bytes. A changed loop may allocate forever, and exhaust the
machine."""


def main(argv: Sequence[str]) -> int:
    campaign = settings_of("scripts.mutate", "Small wrong changes, one at a time.", Campaign, argv)
    areas = campaign.areas.split()
    found = [aim for aim in aims(ROOT) if aim.mutant.key.startswith(campaign.only)]
    found = [aim for aim in found if not areas or aim.target.area in areas]
    if campaign.list:
        for aim in found:
            print(f"{aim.mutant.key}: {aim.mutant.edit.shown((ROOT / aim.path).read_bytes())}")
        return 0
    show(f"mutate: seed {campaign.seed}, {campaign.sample} of {len(found)} mutants")
    resource.setrlimit(resource.RLIMIT_DATA, (_MOST_BYTES, _MOST_BYTES))
    verdicts = run(campaign, found, show)
    print(table(verdicts))
    survivors = [verdict for verdict in verdicts if verdict.status == Status.SURVIVED.value]
    for verdict in survivors:
        print(f"{verdict.status}: {verdict.key}: {verdict.change}")
    low, high = interval(len(verdicts) - len(survivors), len(verdicts))
    print(f"mutate: seed {campaign.seed}, {len(verdicts)} tried, {len(survivors)} survived")
    print(f"mutate: caught or equivalent {low:.1%} to {high:.1%} of all, with 95% confidence")
    return 1 if survivors else 0


def table(verdicts: list[Verdict]) -> str:
    """Return a Markdown table of verdicts by area, in the form of docs/mutants.md."""
    shown = (Status.CAUGHT, Status.TIMEOUT, Status.SURVIVED, Status.EQUIVALENT)
    rows = [head("area", "mutants", *(status.value for status in shown))]
    areas = list(dict.fromkeys(verdict.area for verdict in verdicts))
    for area in (*areas, "all"):
        of_area = [verdict for verdict in verdicts if area in (verdict.area, "all")]
        counts = Counter(verdict.status for verdict in of_area)
        rows.append(row(area, len(of_area), *(counts[status.value] for status in shown)))
    return "\n".join(rows)


def interval(good: int, tried: int) -> tuple[float, float]:
    """Return Wilson's 95% interval of a share. good: successes in the sample. tried: size of the
    sample."""
    if tried == 0:
        return 0.0, 1.0
    z = 1.96
    share, weight = good / tried, 1 + z * z / tried
    middle = share + z * z / (2 * tried)
    spread = z * math.sqrt(share * (1 - share) / tried + (z / (2 * tried)) ** 2)
    return (middle - spread) / weight, (middle + spread) / weight


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
