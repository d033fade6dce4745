"""The outcome of one test of another project's test suite, and a reader of outcomes."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Verdict = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True)
class Outcome:
    """One test's outcome. test: its name within the suite. message: reason of a failure or a skip,
    else empty."""

    suite: str
    test: str
    verdict: Verdict
    message: str = ""


def read_lines(suite: str, file: Path) -> list[Outcome]:
    """Read the outcomes written by the plugin outcome_lines; empty if there is no file.

    If a test is recorded twice, by its set-up and its call, the later line counts.
    """
    if not file.exists():
        return []
    found: dict[str, Outcome] = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        each = json.loads(line)
        found[each["test"]] = Outcome(suite, each["test"], each["outcome"], each["message"])
    return list(found.values())


def failures(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Return the failed outcomes, in order."""
    return [each for each in outcomes if each.verdict == "failed"]
