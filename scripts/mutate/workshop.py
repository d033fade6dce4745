"""A workshop: a copy of the source tree for trying one mutant at a time. The checkout is never
changed.

Owns the copy. Thread rule: one thread for each workshop; workshops share the records of lines.
Invariants: between trials the copy's sources and extension equal the checkout's. A late failure, or
a test without an end, counts only if the same tests pass right after without the mutant.
"""

import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from py_compile import PycInvalidationMode, compile

from scripts.common.package_copy import CPP_TESTS, PackageCopy
from scripts.mutate.mutant import Status
from scripts.mutate.targets import Aim
from scripts.mutate.touched_lines import FILES, OUT, PLUGIN, Ran, TouchedLines

_LEAST_SECONDS = 60.0
_PATIENCE = 6.0
_LATE_SECONDS = 20.0
"""Seconds of testing. After this time, a busy machine may have caused a test's failure."""
_MEASURED_SECONDS = 1800.0
_PYTEST = ("-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--hypothesis-seed=0")
_FAILED = re.compile(r"^(?:FAILED|ERROR) (?:\S*/)?([^\s\[]+)", re.MULTILINE)


class BrokenWorkshop(RuntimeError):
    """No mutant can be tried in this copy: the tests fail without a mutant, or nothing can be
    built."""


_Step = tuple[tuple[str, ...], float, Callable[[], bool]]
"""A test command expected to notice a mutant, its time limit in seconds, and a function building
the copy before it."""


class Workshop:
    def __init__(self, root: Path, folder: Path, touched: TouchedLines) -> None:
        """Set up the copy. root: the checkout. folder: folder of the copy. touched: records of the
        lines tests execute, common to all workshops of this checkout."""
        self._copy = PackageCopy(root, folder)
        for path in self._copy.changed:
            if path.suffix == ".py" and not path.name.startswith("test_"):
                # Check bytecode by hashes, so a mutant's bytecode is never used for another source.
                compile(str(self.place / path), invalidation_mode=PycInvalidationMode.CHECKED_HASH)
        self._touched = touched
        self._baselines: dict[tuple[str, ...], float] = {}
        self._builds_cpp = False

    @property
    def place(self) -> Path:
        """Return the folder of the copy."""
        return self._copy.place

    def try_out(self, aim: Aim) -> tuple[Status, str]:
        """Try a mutant. Returns CAUGHT, TIMEOUT, INVALID or SURVIVED, and the name of the failed
        test.

        Tests of the changed lines run first; for C++, the tests of the C++ part. All tests of the
        target run if the first ones pass. Raises BrokenWorkshop.
        """
        for step in self._cpp_steps(aim) if aim.is_cpp else self._python_steps(aim):
            status, by = self._tried(aim, step)
            if status is not Status.SURVIVED:
                return status, by
        return Status.SURVIVED, ""

    def _python_steps(self, aim: Aim) -> Iterator[_Step]:
        """Yield the test commands of a Python mutant, test file by test file. So later files are
        not measured if the first one notices the mutant."""
        for file in aim.target.runs:
            if touching := self._touched.touching(aim, file, self._measure):
                tests = [ran.test for ran in touching]
                yield _step(tests, sum(ran.seconds for ran in touching), lambda: True)
        yield self._all(aim, lambda: True)

    def _cpp_steps(self, aim: Aim) -> Iterator[_Step]:
        self._configure()
        program = str(self._copy.cpp_build / CPP_TESTS)
        yield (program,), _LEAST_SECONDS, self._copy.build_tests
        yield self._all(aim, self._copy.build)

    def _all(self, aim: Aim, build: Callable[[], bool]) -> _Step:
        runs = aim.target.runs
        if runs not in self._baselines:
            begun = time.monotonic()
            command, _, _ = _step(runs, 0.0, build)
            if not build() or self._copy.run(command, _MEASURED_SECONDS) != 0:
                raise BrokenWorkshop(f"{runs} fail without a mutant: see {self._copy.log}")
            self._baselines[runs] = time.monotonic() - begun
        return _step(runs, self._baselines[runs], build)

    def _tried(self, aim: Aim, step: _Step) -> tuple[Status, str]:
        command, seconds, build = step
        with self._changed(aim):
            if not build():
                return Status.INVALID, ""
            begun = time.monotonic()
            status = self._copy.run(command, seconds)
            late = time.monotonic() - begun > _LATE_SECONDS
            failed = _FAILED.search(self._copy.log.read_text(errors="replace"))
        if status == 0:
            return Status.SURVIVED, ""
        if late and not (build() and self._copy.run(command, seconds) == 0):
            return Status.SURVIVED, ""
        if status is None:
            return Status.TIMEOUT, ""
        return Status.CAUGHT, failed[1] if failed else Path(command[0]).name

    def _measure(self, file: str) -> Sequence[Ran]:
        """Record the executed lines and the seconds of a test file's tests. Raises
        BrokenWorkshop."""
        out = self._copy.log.with_name("touched.json")
        out.unlink(missing_ok=True)
        more = {FILES: os.pathsep.join(map(str, self._touched.mutated)), OUT: str(out)}
        command = (sys.executable, *_PYTEST, "--maxfail=0", "-p", PLUGIN, file)
        self._copy.run(command, _MEASURED_SECONDS, more)
        if not out.exists():
            raise BrokenWorkshop(f"{file} does not end without a mutant: see {self._copy.log}")
        return [Ran(*ran) for ran in json.loads(out.read_text())]

    def _configure(self) -> None:
        """Configure the C++ build once. A build failing without a mutant would make every mutant
        invalid, so it raises BrokenWorkshop."""
        if self._builds_cpp:
            return
        if not (self._copy.cpp_build / "build.ninja").exists() and not self._copy.configure():
            raise BrokenWorkshop("cmake cannot configure the C++ part: is doctest-dev there?")
        if not self._copy.build_tests():
            raise BrokenWorkshop(f"the tests in C++ do not build: see {self._copy.log}")
        self._builds_cpp = True

    @contextmanager
    def _changed(self, aim: Aim) -> Iterator[None]:
        """Apply the mutant to the copy while the block runs."""
        file = self.place / aim.path
        source = file.read_bytes()
        file.write_bytes(aim.mutant.edit.applied(source))
        try:
            yield
        finally:
            file.write_bytes(source)
            if aim.is_cpp:
                self._copy.load_installed()


def _step(tests: Sequence[str], seconds: float, build: Callable[[], bool]) -> _Step:
    """Return a step for the tests. seconds: duration of the tests without a mutant. build: function
    building the copy before them."""
    command = (sys.executable, *_PYTEST, *tests)
    return command, max(_LEAST_SECONDS, _PATIENCE * seconds), build
