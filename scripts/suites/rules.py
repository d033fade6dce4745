"""The reviewed table of failures: the class of each, and the reason.

A rule is a table `[[rule]]` of `classes/SUITE.toml`. `tests`: patterns of test names (`*` for any
text). `says`: a regular expression found in the failure's message. `class`: the failure's class.
`reason`: a sentence. `sometimes = true` marks a failure not seen in every run, because the model's
words decide it.
"""

import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from scripts.suites.outcome import Outcome

Class = Literal["ours", "theirs", "theirs (internal)", "model", "refused"]
CLASSES: tuple[Class, ...] = get_args(Class)
MEANINGS: dict[Class, str] = {
    "ours": "a fault of tasuki's",
    "theirs": "the test needs that server's own flags, routes, words or habits",
    "theirs (internal)": "the test calls that project's own code",
    "model": "the small model decides otherwise than the suite's model",
    "refused": "tasuki refuses the field by name, by choice",
}


class BadRule(ValueError):
    """A malformed rule. The message names its file, its place and the fix."""


@dataclass(frozen=True)
class Rule:
    suite: str
    tests: tuple[str, ...]
    says: str
    kind: Class
    reason: str
    sometimes: bool

    def covers(self, outcome: Outcome) -> bool:
        """Return True if the rule explains this failure."""
        return self.names(outcome.test) and re.search(self.says, outcome.message) is not None

    def names(self, test: str) -> bool:
        """Return True if one of the rule's patterns matches the whole test name."""
        return any(_matches(pattern, test) for pattern in self.tests)


@dataclass(frozen=True)
class Explained:
    """A failure and the first rule covering it. rule: None if no rule covers it."""

    outcome: Outcome
    rule: Rule | None


def read_rules(folder: Path, suite: str) -> list[Rule]:
    """Read the rules of a suite; empty if it has no table. Raises BadRule."""
    file = folder / f"{suite}.toml"
    if not file.exists():
        return []
    tables = tomllib.loads(file.read_text(encoding="utf-8")).get("rule", [])
    return [_rule(suite, f"{file.name}, rule {at}", table) for at, table in enumerate(tables, 1)]


def explain(failures: Iterable[Outcome], rules: Sequence[Rule]) -> list[Explained]:
    """Assign each failure the first rule covering it, or None."""
    return [
        Explained(each, next((rule for rule in rules if rule.covers(each)), None))
        for each in failures
    ]


def stale(outcomes: Sequence[Outcome], rules: Sequence[Rule]) -> list[Rule]:
    """Return the rules explaining no failure, although a test they name was run.

    A rule with `sometimes` is never stale.
    """
    explained = {id(each.rule) for each in explain(_failed(outcomes), rules)}
    ran = [each.test for each in outcomes if each.verdict != "skipped"]
    return [
        rule
        for rule in rules
        if not rule.sometimes and id(rule) not in explained and any(map(rule.names, ran))
    ]


def _failed(outcomes: Iterable[Outcome]) -> list[Outcome]:
    return [each for each in outcomes if each.verdict == "failed"]


def _matches(pattern: str, test: str) -> bool:
    parts = map(re.escape, pattern.split("*"))
    return re.fullmatch(".*".join(parts), test, re.DOTALL) is not None


def _rule(suite: str, place: str, table: dict[str, object]) -> Rule:
    unknown = set(table) - {"tests", "says", "class", "reason", "sometimes"}
    tests, kind, reason = table.get("tests"), table.get("class"), table.get("reason")
    if unknown:
        raise BadRule(f"{place}: {sorted(unknown)[0]!r} is no key of a rule")
    if not isinstance(tests, list) or not tests or not all(isinstance(t, str) for t in tests):
        raise BadRule(f"{place}: `tests` must be a list of patterns")
    if kind not in CLASSES:
        raise BadRule(f"{place}: `class` must be one of {', '.join(CLASSES)}")
    if not isinstance(reason, str) or not reason.endswith("."):
        raise BadRule(f"{place}: `reason` must be a sentence that ends with a full stop")
    says = str(table.get("says", ""))
    return Rule(suite, tuple(tests), says, kind, reason, bool(table.get("sometimes", False)))
