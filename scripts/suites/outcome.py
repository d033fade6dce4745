"""What one test of a suite gave."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Verdict = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True)
class Outcome:
    """test: its name within the suite; message: why it failed or was skipped, else empty."""

    suite: str
    test: str
    verdict: Verdict
    message: str = ""


def read_lines(suite: str, file: Path) -> list[Outcome]:
    """Read what the plugin outcome_lines wrote; nothing where there is no file.

    A test that is noted twice, by its set-up and its call, counts by the later line.
    """
    if not file.exists():
        return []
    found: dict[str, Outcome] = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        each = json.loads(line)
        found[each["test"]] = Outcome(suite, each["test"], each["outcome"], each["message"])
    return list(found.values())


def failures(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Return those that failed, in their order."""
    return [each for each in outcomes if each.verdict == "failed"]
