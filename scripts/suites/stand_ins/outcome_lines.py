"""A pytest plugin writing one JSON line for each test to the file named by SUITES_OUTCOMES."""

import json
import os
from typing import Any

import pytest

_LETTERS = 2000


def _write(line: dict[str, Any]) -> None:
    with open(os.environ["SUITES_OUTCOMES"], "a", encoding="utf-8") as outcomes:
        outcomes.write(json.dumps(line) + "\n")


def _message(report: Any) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    return (crash.message if crash else str(report.longrepr))[:_LETTERS]


def _name(report: Any) -> str:
    """Return the test's name; for a subtest, followed by the subtest's label."""
    part = getattr(report, "context", None)
    if part is None:
        return str(report.nodeid)
    words = [part.msg, *part.kwargs.values()]
    return " ".join([report.nodeid, *(str(word).strip("'") for word in words if word is not None)])


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Record the outcome of a test's call, or of its failed set-up."""
    if report.when == "call" or (report.when == "setup" and not report.passed):
        outcome = "skipped" if report.skipped else report.outcome
        message = "" if report.passed else _message(report)
        if report.skipped and isinstance(report.longrepr, tuple):
            message = report.longrepr[2]
        _write({"test": _name(report), "outcome": outcome, "message": message})


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Record a test file pytest cannot read."""
    if report.failed:
        _write({"test": report.nodeid, "outcome": "failed", "message": _collected(report)})


def _collected(report: pytest.CollectReport) -> str:
    return "cannot be read: " + str(report.longrepr)[-_LETTERS:]
