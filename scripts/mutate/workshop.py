"""Where one mutant at a time is tried: a copy of the tree, so that the checkout is never touched.

Owns the copy. Thread rule: one thread a workshop; workshops share their baselines and what is known
of lines. Invariants: between trials sources and extension of the copy are the checkout's; a test
that failed late, or did not end, counts only where the same tests pass right after without it.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from py_compile import PycInvalidationMode, compile

from scripts.common.package_copy import CPP_TESTS, PackageCopy
from scripts.mutate.collected_pytest import CollectedPytest, Order, Ran, Unmade
from scripts.mutate.mutant import Status
from scripts.mutate.targets import PYTHON, Aim, Target
from scripts.mutate.touched_lines import TouchedLines
from scripts.mutate.warm_pytest import WarmPytest

_LEAST_SECONDS = 60.0
_PATIENCE = 6.0
_LATE_SECONDS = 20.0
"""After which a busy machine may have failed a test."""
_MEASURED_SECONDS = 1800.0


class BrokenWorkshop(RuntimeError):
    """Nothing can be tried here: the tests fail without a mutant, or nothing can be built."""


@dataclass(frozen=True)
class Trial:
    """by: the test that noticed, if it is known. seconds: that all took."""

    status: Status
    by: str = ""
    seconds: float = 0.0


class Baselines:
    """How many seconds tests take without a mutant, each run once. Thread rule: any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[tuple[str, ...], threading.Lock] = {}
        self._seconds: dict[tuple[str, ...], float] = {}

    def of(self, tests: tuple[str, ...], measure: Callable[[], float]) -> float:
        """What `measure` returns, or returned for these tests before."""
        with self._lock:
            running = self._running.setdefault(tests, threading.Lock())
        with running:
            if tests not in self._seconds:
                self._seconds[tests] = measure()
            return self._seconds[tests]


class Workshop:
    def __init__(
        self, root: Path, folder: Path, baselines: Baselines, touched: TouchedLines
    ) -> None:
        """root: the checkout. folder: of the copy. baselines, touched: of all workshops of this
        checkout."""
        self._copy = PackageCopy(root, folder)
        for path in self._copy.changed:
            if path.suffix == ".py" and not path.name.startswith("test_"):
                # By their hashes: a mutant's own bytecode is never that of its source.
                compile(str(self.place / path), invalidation_mode=PycInvalidationMode.CHECKED_HASH)
        self._warm: WarmPytest | None = None
        self._collected: CollectedPytest | None = None
        self._baselines = baselines
        self._touched = touched
        self._builds_cpp = False

    @property
    def place(self) -> Path:
        """The copy of the checkout."""
        return self._copy.place

    def glance(self, aim: Aim) -> Trial:
        """What those tests say that run what is changed, or those in C++: CAUGHT, TIMEOUT, INVALID,
        or UNNOTICED. Raises BrokenWorkshop."""
        begun = time.monotonic()
        trial = self._glance_cpp(aim) if aim.is_cpp else self._glance_python(aim)
        return replace(trial, seconds=time.monotonic() - begun)

    def try_out(self, aim: Aim) -> Trial:
        """What all the target's tests say: CAUGHT, TIMEOUT, INVALID or SURVIVED; UNNOTICED where
        they failed late, and fail without it too. Raises BrokenWorkshop."""
        if aim.is_cpp:
            self._configure()
        baseline = self._baselines.of(aim.target.tests, lambda: self._baseline(aim))
        patience = max(_LEAST_SECONDS, _PATIENCE * baseline)
        begun = time.monotonic()
        with self._changed(aim):
            if aim.is_cpp and not self._copy.build():
                return Trial(Status.INVALID, seconds=time.monotonic() - begun)
            tried = time.monotonic()
            status = self._verdict(aim.target, aim.is_cpp, patience)
        late = time.monotonic() - tried > _LATE_SECONDS and status is not Status.SURVIVED
        if late and not self._passes(aim, patience):
            status = Status.UNNOTICED
        return Trial(status, seconds=time.monotonic() - begun)

    def _glance_cpp(self, aim: Aim) -> Trial:
        self._configure()
        if CPP_TESTS not in aim.target.tests:
            return Trial(Status.UNNOTICED)
        program = (str(self._copy.cpp_build / CPP_TESTS),)
        with self._changed(aim):
            if not self._copy.build_tests():
                return Trial(Status.INVALID)
            begun = time.monotonic()
            status = self._copy.run(program, _LEAST_SECONDS)
            late = time.monotonic() - begun > _LATE_SECONDS
        if status == 0:
            return Trial(Status.UNNOTICED)
        if late and not (self._copy.build_tests() and self._copy.run(program, _LEAST_SECONDS) == 0):
            return Trial(Status.UNNOTICED)
        return Trial(Status.TIMEOUT if status is None else Status.CAUGHT, CPP_TESTS)

    def _glance_python(self, aim: Aim) -> Trial:
        """File by file: a later one is not measured for what the first one notices."""
        for file in aim.target.runs:
            touching = self._touched.touching(aim, file, self._measure)
            if touching and (trial := self._by(touching, aim)).status is not Status.UNNOTICED:
                return trial
        return Trial(Status.UNNOTICED)

    def _by(self, touching: Sequence[Ran], aim: Aim) -> Trial:
        tests = [ran.test for ran in touching]
        patience = max(_LEAST_SECONDS, _PATIENCE * sum(ran.seconds for ran in touching))
        before = (self.place / aim.path).read_bytes()
        order = Order(
            tests,
            str(self.place / aim.path),
            before.decode(),
            aim.mutant.edit.applied(before).decode(),
        )
        try:
            with self._changed(aim):
                ran = self._collector().run(order, patience)
            if ran is None:
                passed = self._pass(tests, patience)
                return Trial(Status.TIMEOUT if passed else Status.UNNOTICED)
            last = ran[-1]
            if last.failure is None:
                return Trial(Status.UNNOTICED)
            late = last.seconds > _LATE_SECONDS
            if late and not self._pass([test.test for test in ran], patience):
                return Trial(Status.UNNOTICED)
            return Trial(Status.CAUGHT, Path(last.test.partition("[")[0]).name)
        except Unmade:
            return Trial(Status.UNNOTICED)

    def _pass(self, tests: Sequence[str], patience: float) -> bool:
        """Whether these do without a mutant."""
        ran = self._collector().run(Order(tests), patience)
        return ran is not None and ran[-1].failure is None

    def _measure(self, file: str) -> list[Ran]:
        """What the tests of a file run, and cost."""
        collector = self._collector()
        tests = [test for test in collector.tests if test.startswith(f"{file}::")]
        traced = [str(self.place / path) for path in self._touched.mutated]
        found = collector.run(Order(tests, traced=traced), _MEASURED_SECONDS) if tests else []
        if found is None:
            raise BrokenWorkshop(f"{file} does not end without a mutant")
        here = f"{self.place}/"
        return [
            replace(ran, lines={path.removeprefix(here): ran.lines[path] for path in ran.lines})
            for ran in found
        ]

    def _collector(self) -> CollectedPytest:
        if self._collected is None:
            files = dict.fromkeys(run for target in PYTHON for run in target.runs)
            self._collected = CollectedPytest(self.place, self._copy.environment, list(files))
        return self._collected

    def _configure(self) -> None:
        """Once. What does not build without a mutant would make every mutant invalid."""
        if self._builds_cpp:
            return
        is_configured = (self._copy.cpp_build / "build.ninja").exists()
        if not is_configured and not self._copy.configure():
            raise BrokenWorkshop("cmake cannot configure the C++ part: is doctest-dev there?")
        if not self._copy.build_tests():
            raise BrokenWorkshop(f"the tests in C++ do not build: see {self._copy.log}")
        self._builds_cpp = True

    @contextmanager
    def _changed(self, aim: Aim) -> Iterator[None]:
        """The copy has the mutant while the block runs."""
        file = self.place / aim.path
        source = file.read_bytes()
        file.write_bytes(aim.mutant.edit.applied(source))
        try:
            yield
        finally:
            file.write_bytes(source)
            if aim.is_cpp:
                self._copy.load_installed()

    def _baseline(self, aim: Aim) -> float:
        """Seconds of the target's tests without a mutant."""
        begun = time.monotonic()
        if not self._passes(aim, _MEASURED_SECONDS):
            tests = aim.target.tests
            raise BrokenWorkshop(f"{tests} fail without a mutant: see {self._copy.log}")
        return time.monotonic() - begun

    def _passes(self, aim: Aim, patience: float) -> bool:
        """Whether the target's tests do without a mutant."""
        if aim.is_cpp and not self._copy.build():
            raise BrokenWorkshop("the C++ part cannot be built without a mutant")
        return self._verdict(aim.target, aim.is_cpp, patience) is Status.SURVIVED

    def _verdict(self, target: Target, is_cpp: bool, patience: float) -> Status:
        deadline = time.monotonic() + patience
        status: int | None = 0
        if is_cpp and CPP_TESTS in target.tests:
            status = self._copy.run((str(self._copy.cpp_build / CPP_TESTS),), patience)
        if status == 0:
            arguments = ("-x", "-q", "-p", "no:cacheprovider", "--hypothesis-seed=0", *target.runs)
            if self._warm is None:
                self._warm = WarmPytest(self._copy.place, self._copy.environment)
            status = self._warm.run(arguments, self._copy.log, deadline - time.monotonic())
        if status is None:
            return Status.TIMEOUT
        return Status.SURVIVED if status == 0 else Status.CAUGHT

    def close(self) -> None:
        if self._warm is not None:
            self._warm.close()
        if self._collected is not None:
            self._collected.close()
