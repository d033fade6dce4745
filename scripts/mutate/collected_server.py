"""The process of CollectedPytest: collects tests, then forks a child an order.

Run by its path, in the tree that is tried, with the tree's own `tests` and `scripts`. Thread rule:
one thread, which forks; what is collected starts none.
"""

import gc
import json
import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from types import FrameType, FunctionType
from typing import Any

import pytest

_KEPT = 2000
"""Characters of a failure."""


class Server:
    """A plugin that obeys orders where pytest would run its tests."""

    def __init__(self, orders: int, answers: int) -> None:
        self._orders = os.fdopen(orders, "r")
        self._answers = os.fdopen(answers, "w", buffering=1)
        self._failure: str | None = None
        self._lines: defaultdict[str, set[int]] = defaultdict(set)
        """Of the test that runs, by their file."""

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            raise pytest.UsageError(report.longreprtext)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and self._failure is None:
            self._failure = f"{report.when}: {report.longreprtext[-_KEPT:]}"

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        sys.dont_write_bytecode = True
        items = {item.nodeid: item for item in session.items}
        # Before the freeze, after which they are not listed.
        gc.collect()
        here = os.getcwd()
        functions = [
            found
            for found in gc.get_objects()
            # isinstance would ask objects that answer for others.
            if type(found) is FunctionType and found.__code__.co_filename.startswith(here)
        ]
        gc.freeze()
        self._answers.write(f"{json.dumps(list(items))}\n")
        for line in self._orders:
            order = json.loads(line)
            child = os.fork()
            if child == 0:
                self._obey(order, items, functions)
            self._answers.write(f"{child}\n")
            _, status = os.waitpid(child, 0)
            self._answers.write(f"{os.waitstatus_to_exitcode(status)}\n")
        return True

    def _obey(
        self,
        order: dict[str, Any],
        items: dict[str, pytest.Item],
        functions: Sequence[FunctionType],
    ) -> None:
        """The child's whole life."""
        status = 1
        try:
            os.setsid()
            written = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            for stream in (1, 2):
                os.dup2(written, stream)
            if order["path"]:
                from scripts.mutate.live_functions import change

                change(functions, order["path"], order["before"], order["after"])
            ran = self._run([items[name] for name in order["tests"]], frozenset(order["traced"]))
            with open(order["answer"], "w") as answer:
                json.dump(ran, answer)
            status = 0
        finally:
            os._exit(status)

    def _run(self, items: Sequence[pytest.Item], traced: frozenset[str]) -> list[dict[str, Any]]:
        if traced:
            self._note(traced)
        ran = []
        for item, following in zip(items, (*items[1:], None), strict=True):
            self._lines, self._failure = defaultdict(set), None
            cpu, seconds = sum(os.times()[:4]), time.monotonic()
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            ran.append(
                {
                    "test": item.nodeid,
                    "cpu": round(sum(os.times()[:4]) - cpu, 2),
                    "seconds": round(time.monotonic() - seconds, 2),
                    "failure": self._failure,
                    "lines": {path: sorted(found) for path, found in self._lines.items()},
                }
            )
            if self._failure is not None and not traced:
                break
        return ran

    def _note(self, traced: frozenset[str]) -> None:
        """Which lines of these files run from now on, in this thread and in new ones."""

        def inside(frame: FrameType, event: str, _: object) -> Any:
            if event == "line":
                self._lines[frame.f_code.co_filename].add(frame.f_lineno)
            return inside

        def entered(frame: FrameType, event: str, _: object) -> Any:
            return inside if frame.f_code.co_filename in traced else None

        threading.settrace(entered)
        sys.settrace(entered)


def main() -> int:
    # Of the tests, while nothing is changed: the next process need not read them.
    sys.dont_write_bytecode = False
    orders, answers, *files = sys.argv[1:]
    # As `python -m pytest` does.
    sys.path.insert(0, os.getcwd())
    sys.argv = ["pytest", *files]
    options = ("-s", "-q", "-p", "no:cacheprovider", "--hypothesis-seed=0")
    return int(pytest.main([*options, *files], plugins=[Server(int(orders), int(answers))]))


if __name__ == "__main__":
    sys.exit(main())
