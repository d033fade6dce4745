"""`python -m scripts.suites SUITES [--only SUITE] [--file FILE]`: runs other projects' test suites
against real nodes, and assigns each failure its class from the reviewed tables.

Exit status 1 if a failure has no class, or is ours, or if a row of the tables no longer explains
anything.
"""

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from scripts.suites import suite_openresponses, suite_schemathesis, suite_smg, suite_vllm
from scripts.suites.outcome import Outcome, failures
from scripts.suites.report import UNKNOWN, as_json, as_page, dumped, merged
from scripts.suites.rules import Explained, Rule, explain, read_rules, stale
from scripts.suites.workplace import ROOT, MissingSuite, Workplace

SUITES: Mapping[str, Callable[[Workplace], list[Outcome]]] = {
    "vllm": suite_vllm.run,
    "smg": suite_smg.run,
    "openresponses": suite_openresponses.run,
    "schemathesis": suite_schemathesis.run,
}
TABLES = Path(__file__).parent / "classes"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.suites", description=__doc__)
    parser.add_argument("suites", type=Path, help="the folder that holds the suites")
    parser.add_argument("--only", choices=SUITES, action="append", help="these; all by default")
    parser.add_argument("--file", action="append", default=[], help="in the suite; all by default")
    parser.add_argument(
        "--out",
        type=Path,
        help="JSON, which keeps what it has of other suites, and a page beside it",
    )
    asked = parser.parse_args()
    names = asked.only or list(SUITES)
    ran: dict[str, list[Outcome]] = {}
    explained: list[Explained] = []
    old: list[Rule] = []
    for name in names:
        folder = ROOT / "build" / "suites" / name
        print(f"suites: {name}; its log will be in {folder}", flush=True)
        place = Workplace(asked.suites.resolve(), folder, tuple(asked.file))
        place.prepare()
        try:
            ran[name] = SUITES[name](place)
        except MissingSuite as missing:
            print(f"suites: {missing}", file=sys.stderr)
            return 2
        rules = read_rules(TABLES, name)
        explained += explain(failures(ran[name]), rules)
        # A part of a suite may not run the tests of every rule.
        old += [] if asked.file else stale(ran[name], rules)
    return concluded(ran, explained, old, asked.out)


def concluded(
    ran: Mapping[str, Sequence[Outcome]],
    explained: Sequence[Explained],
    old: Sequence[Rule],
    out: Path | None,
) -> int:
    results = as_json(ran, explained)
    print(json.dumps(results["suites"], indent=1))
    if out is not None:
        kept = json.loads(out.read_text(encoding="utf-8")) if out.exists() else None
        written = merged(kept, results) if kept else results
        out.write_text(dumped(written), encoding="utf-8")
        out.with_suffix(".md").write_text(as_page(written), encoding="utf-8")
    bad = [row for row in results["failures"] if row["class"] in ("ours", UNKNOWN)]
    for row in bad:
        print(f"suites: {row['class']}: {row['test']}: {row['reason']}")
    for rule in old:
        print(f"suites: a row of {rule.suite} explains nothing: {rule.tests[0]}: {rule.reason}")
    empty = [name for name, outcomes in ran.items() if not outcomes]
    for name in empty:
        print(f"suites: {name} ran no test; see its log")
    good = not (bad or old or empty)
    print(f"suites: {'PASSED' if good else 'FAILED'}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
