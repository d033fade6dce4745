"""A pytest plugin that compares every skip of a run with a list of allowed ones; any other fails
the run.

Owns the recorded skips. Knows nothing of this machine: the list does. Invariant: a skip without a
matching entry makes the exit status that of a failed test. This includes expected failures and
files that skip as a whole.
"""

from collections import Counter
from collections.abc import Sequence

import pytest

from tests.allowed_skips import ALLOWED, AllowedSkip

OPTION = "--only-listed-skips"


class ListedSkips:
    def __init__(self, allowed: Sequence[AllowedSkip] = ALLOWED) -> None:
        self._allowed = [entry for entry in allowed if entry.machine.holds()]
        self._skipped: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._note(report)

    def _note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.skipped:
            told = report.longrepr
            reason = told[2] if isinstance(told, tuple) else getattr(report, "wasxfail", str(told))
            self._skipped[report.nodeid] = reason.removeprefix("Skipped: ")

    def _entry(self, test: str) -> AllowedSkip | None:
        reason = self._skipped[test]
        return next((item for item in self._allowed if item.matches(test, reason)), None)

    @property
    def unlisted(self) -> list[str]:
        return [test for test in self._skipped if self._entry(test) is None]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.unlisted and session.exitstatus in (
            pytest.ExitCode.OK,
            pytest.ExitCode.NO_TESTS_COLLECTED,
        ):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        say = terminalreporter
        say.section("skips")
        counts = Counter(self._entry(test) for test in self._skipped)
        for entry in self._allowed:
            if counts[entry]:
                say.line(f"allowed: {counts[entry]} of {entry.tests}: {entry.why}")
            else:
                say.line(f"stale: nothing of {entry.tests} skips with {entry.machine.name}")
        for test in self.unlisted:
            say.line(f"NOT LISTED in tests/allowed_skips.py: {test}: {self._skipped[test]}")
