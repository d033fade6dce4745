"""`make attack SECONDS=600`: what strangers, tenants and rogue peers do to a pair of real daemons.

Prints its seed first and a table last: attack, tries, result, verdict. Exit status 1 on a finding.
"""

import argparse
import random
import sys

from scripts.attack.campaign import run, table
from scripts.attack.catalogue import ATTACKS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.attack", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=None, help="drawn and printed if not given")
    parser.add_argument("--only", default="", help="attacks whose names hold this")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(2**32) if options.seed is None else options.seed
    attacks = [attack for attack in ATTACKS if options.only in attack.name]
    print(f"attack: seed {seed}, {options.seconds:.0f} s", flush=True)
    rows = run(attacks, options.seconds, seed, lambda line: print(line, flush=True))
    print(table(rows))
    findings = [f"{row.attack}: {finding}" for row in rows for finding in row.findings]
    for finding in findings:
        print(f"finding: {finding}")
    print(f"attack: seed {seed}, {len(findings)} findings", flush=True)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
