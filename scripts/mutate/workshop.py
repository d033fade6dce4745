"""Where one mutant at a time is tried: a copy of the tree, so that the checkout is never touched.

Owns the copy. Thread rule: one thread a workshop; workshops share their baselines.
Invariant: between trials sources and extension of the copy are the checkout's.
"""

import threading
import time
from collections.abc import Callable
from compileall import compile_dir
from pathlib import Path
from py_compile import PycInvalidationMode

from scripts.mutate.mutant import Status
from scripts.mutate.targets import Aim, Target
from scripts.mutate.warm_pytest import WarmPytest
from scripts.package_copy import CPP_TESTS, PackageCopy

_LEAST_SECONDS = 60.0
_PATIENCE = 6.0


class BrokenWorkshop(RuntimeError):
    """Nothing can be tried here: the tests fail without a mutant, or nothing can be built."""


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
    def __init__(self, root: Path, folder: Path, baselines: Baselines) -> None:
        """root: the checkout. folder: replaced. baselines: of all workshops of this checkout."""
        self._copy = PackageCopy(root, folder)
        # By their hashes: a mutant's own bytecode is never that of its source.
        compile_dir(self._copy.place, quiet=2, invalidation_mode=PycInvalidationMode.CHECKED_HASH)
        self._pytest = WarmPytest(self._copy.place, self._copy.environment)
        self._baselines = baselines

    @property
    def place(self) -> Path:
        """The copy of the checkout."""
        return self._copy.place

    def try_out(self, aim: Aim) -> tuple[Status, float]:
        """What the tests say, and how many seconds they took. Raises BrokenWorkshop."""
        is_configured = (self._copy.cpp_build / "build.ninja").exists()
        if aim.is_cpp and not is_configured and not self._copy.configure():
            raise BrokenWorkshop("cmake cannot configure the C++ part: is doctest-dev there?")
        baseline = self._baselines.of(aim.target.tests, lambda: self._baseline(aim))
        patience = max(_LEAST_SECONDS, _PATIENCE * baseline)
        file = self.place / aim.path
        source = file.read_bytes()
        begun = time.monotonic()
        file.write_bytes(aim.mutant.edit.applied(source))
        try:
            if aim.is_cpp and not self._copy.build():
                return Status.INVALID, time.monotonic() - begun
            status = self._verdict(aim.target, aim.is_cpp, patience)
        finally:
            file.write_bytes(source)
            self._copy.load_installed()
        return status, time.monotonic() - begun

    def _baseline(self, aim: Aim) -> float:
        """Seconds of the target's tests without a mutant."""
        tests = aim.target.tests
        if aim.is_cpp and not self._copy.build():
            raise BrokenWorkshop("the C++ part cannot be built without a mutant")
        begun = time.monotonic()
        status = self._verdict(aim.target, aim.is_cpp, 900.0)
        if status is not Status.SURVIVED:
            raise BrokenWorkshop(
                f"without a mutant {tests} end as {status.value}: see {self._copy.log}"
            )
        return time.monotonic() - begun

    def _verdict(self, target: Target, is_cpp: bool, patience: float) -> Status:
        deadline = time.monotonic() + patience
        status: int | None = 0
        if is_cpp and CPP_TESTS in target.tests:
            status = self._copy.run((str(self._copy.cpp_build / CPP_TESTS),), patience)
        if status == 0:
            arguments = ("-x", "-q", "-p", "no:cacheprovider", "--hypothesis-seed=0", *target.runs)
            status = self._pytest.run(arguments, self._copy.log, deadline - time.monotonic())
        if status is None:
            return Status.TIMEOUT
        return Status.SURVIVED if status == 0 else Status.CAUGHT

    def close(self) -> None:
        self._pytest.close()
