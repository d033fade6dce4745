"""Records of the source lines executed by each test, and of the test's time. They are made once a
run over the unchanged source.

The records choose the first tests of a mutant and their time limit. They give no verdict: all tests
try a mutant after it passes the first ones. Used as a plugin of pytest (`-p
scripts.mutate.touched_lines`), the module records a file's tests. TOUCHED_FILES names the recorded
source files. TOUCHED_OUT names a JSON file; it gets a Ran for each passed test. Thread rule: any
thread, one lock.
"""

import json
import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pytest

from scripts.mutate.targets import Aim

PLUGIN, FILES, OUT = __name__, "TOUCHED_FILES", "TOUCHED_OUT"


class Ran(NamedTuple):
    """The record of one passed test: its seconds, and its executed lines by source file."""

    test: str
    seconds: float
    lines: Mapping[str, Sequence[int]]


class TouchedLines:
    def __init__(self, root: Path, aims: Sequence[Aim]) -> None:
        """Set up the records. aims: the mutants; the lines of their source files are recorded."""
        self.mutated = sorted({aim.path for aim in aims if not aim.is_cpp})
        self._root = root
        self._lock = threading.Lock()
        self._passed: dict[str, Sequence[Ran]] = {}

    def touching(self, aim: Aim, file: str, measure: Callable[[str], Sequence[Ran]]) -> list[Ran]:
        """Return the tests in the test file `file` executing the mutant's lines, cheapest first.
        measure: runs the test file and returns its records; called if they are not known yet."""
        source = (self._root / aim.path).read_bytes()
        first = source.count(b"\n", 0, aim.mutant.edit.start) + 1
        last = source.count(b"\n", 0, aim.mutant.edit.end) + 1
        with self._lock:
            if file not in self._passed:
                self._passed[file] = measure(file)
        found = [
            ran
            for ran in self._passed[file]
            if any(first <= line <= last for line in ran.lines.get(str(aim.path), ()))
        ]
        # Round to tenths: smaller differences depend on the machine's load. Equal times keep the
        # file's order: a plain case is before a case that may wait without end for the mutant's
        # fault.
        return sorted(found, key=lambda ran: round(ran.seconds, 1))


class _Notes:
    def __init__(self, files: Sequence[str], out: Path) -> None:
        """Set up the plugin. files: recorded source files, relative to pytest's working folder.
        out: path of the JSON file."""
        self._files = {os.path.abspath(file): file for file in files}
        self._out = out
        self._failed = False
        self._ran: list[Ran] = []
        self._lines: defaultdict[str, set[int]] = defaultdict(set)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._failed |= not report.passed

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._lines, self._failed = defaultdict(set), False
        begun = time.monotonic()
        threading.settrace(self._entered)
        sys.settrace(self._entered)
        found = yield
        sys.settrace(None)
        if not self._failed:
            lines = {path: sorted(numbers) for path, numbers in self._lines.items()}
            self._ran.append(Ran(item.nodeid, time.monotonic() - begun, lines))
        return found

    def pytest_sessionfinish(self) -> None:
        self._out.write_text(json.dumps(self._ran))

    def _entered(self, frame: FrameType, event: str, _: object) -> Any:
        return self._inside if frame.f_code.co_filename in self._files else None

    def _inside(self, frame: FrameType, event: str, _: object) -> Any:
        if event == "line":
            self._lines[self._files[frame.f_code.co_filename]].add(frame.f_lineno)
        return self._inside


def pytest_configure(config: pytest.Config) -> None:
    files, out = os.environ[FILES].split(os.pathsep), Path(os.environ[OUT])
    config.pluginmanager.register(_Notes(files, out), "touched-lines")
