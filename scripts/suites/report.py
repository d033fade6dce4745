"""The results of other projects' suites: JSON with a row for each failure, and a page with a row
for each test function."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from scripts.common.command import head, row
from scripts.suites.outcome import Outcome, failures
from scripts.suites.rules import CLASSES, MEANINGS, Class, Explained

UNKNOWN = "not classified"
_LETTERS = 200
_FUNCTIONS = 4


def as_json(ran: Mapping[str, Sequence[Outcome]], explained: Sequence[Explained]) -> dict[str, Any]:
    """Return the results as JSON: counts of each suite, and a row for each failure. ran: outcomes
    by the suite's name. explained: failures with their rules."""
    counts = {
        suite: {
            "run": sum(each.verdict != "skipped" for each in outcomes),
            "passed": sum(each.verdict == "passed" for each in outcomes),
            "failed": len(failures(outcomes)),
            "skipped": sum(each.verdict == "skipped" for each in outcomes),
            **_by_class(suite, explained),
        }
        for suite, outcomes in ran.items()
    }
    return {"suites": counts, "failures": [_row(each) for each in explained]}


def merged(kept: Mapping[str, Any], fresh: Mapping[str, Any]) -> dict[str, Any]:
    """Return the results `fresh`, together with the suites of `kept` not run in `fresh`."""
    suites = {**kept["suites"], **fresh["suites"]}
    old = [row for row in kept["failures"] if row["suite"] not in fresh["suites"]]
    rows = [*old, *fresh["failures"]]
    order = list(suites)
    return {"suites": suites, "failures": sorted(rows, key=lambda row: order.index(row["suite"]))}


def as_page(results: Mapping[str, Any]) -> str:
    """Return the results as a Markdown page. results: value returned by as_json()."""
    made = "Made by `python -m scripts.suites`. Classes of failures:"
    lines = ["# Other projects' suites", "", made, ""]
    lines += [f"- {kind}: {MEANINGS[kind]}." for kind in CLASSES]
    lines += ["", head("suite", "run", "passed", "failed", *CLASSES, "skipped")]
    for suite, counts in results["suites"].items():
        cells = [counts[key] for key in ("run", "passed", "failed", *CLASSES, "skipped")]
        lines.append(row(suite, *cells))
    for suite in results["suites"]:
        rows = [each for each in results["failures"] if each["suite"] == suite]
        lines += ["", f"## {suite}", ""]
        lines += _table(rows) if rows else ["No test failed."]
    return "\n".join([*lines, ""])


def dumped(results: Mapping[str, Any]) -> str:
    """Return the results as JSON text with one row a line."""
    rows = ",\n".join(f"  {json.dumps(row, ensure_ascii=False)}" for row in results["failures"])
    counts = json.dumps(results["suites"], indent=1)
    return f'{{"suites": {counts},\n"failures": [\n{rows}\n]}}\n'


def _by_class(suite: str, explained: Sequence[Explained]) -> dict[str, int]:
    kinds: Counter[Class] = Counter(
        each.rule.kind for each in explained if each.rule and each.outcome.suite == suite
    )
    return {kind: kinds[kind] for kind in CLASSES}


def _row(explained: Explained) -> dict[str, str]:
    rule, outcome = explained.rule, explained.outcome
    return {
        "suite": outcome.suite,
        "test": outcome.test,
        "class": rule.kind if rule else UNKNOWN,
        "reason": rule.reason if rule else outcome.message[:_LETTERS],
    }


def _table(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """Return a Markdown table of failures. Rows with one function and reason become one row, with
    their count. Rows of one file become one row if more than _FUNCTIONS of its functions have the
    same reason."""

    def in_file(row: Mapping[str, str]) -> tuple[str, str, str]:
        return (row["test"].partition("::")[0], row["class"], row["reason"])

    lines = [head("test", "failures", "class", "reason")]
    for (file, kind, reason), same in groupby(sorted(rows, key=in_file), in_file):
        functions = Counter(row["test"].partition("[")[0] for row in same)
        if len(functions) > _FUNCTIONS:
            functions = Counter({f"{file}::*": functions.total()})
        lines += [row(f"`{test}`", count, kind, reason) for test, count in functions.items()]
    return lines
