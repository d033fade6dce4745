"""Where one mutant at a time is tried: a copy of the tree, so that the checkout is never touched.

Owns the copy and how long its tests take without a mutant. Thread rule: one thread a workshop.
Invariant: between trials sources and extension of the copy are the checkout's.
"""

import sys
import time
from pathlib import Path

from scripts.mutate.mutant import Status
from scripts.mutate.targets import Aim, Target
from scripts.package_copy import CPP_TESTS, PackageCopy

_LEAST_SECONDS = 60.0
_PATIENCE = 6.0


class BrokenWorkshop(RuntimeError):
    """Nothing can be tried here: the tests fail without a mutant, or nothing can be built."""


class Workshop:
    def __init__(self, root: Path, folder: Path) -> None:
        """root: the checkout. folder: replaced."""
        self._copy = PackageCopy(root, folder)
        self._baselines: dict[tuple[str, ...], float] = {}

    @property
    def place(self) -> Path:
        """The copy of the checkout."""
        return self._copy.place

    def try_out(self, aim: Aim) -> tuple[Status, float]:
        """What the tests say, and how many seconds they took. Raises BrokenWorkshop."""
        is_configured = (self._copy.cpp_build / "build.ninja").exists()
        if aim.is_cpp and not is_configured and not self._copy.configure():
            raise BrokenWorkshop("cmake cannot configure the C++ part: is doctest-dev there?")
        patience = max(_LEAST_SECONDS, _PATIENCE * self._baseline(aim))
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
        """Seconds of the target's tests without a mutant, run once."""
        tests = aim.target.tests
        if tests not in self._baselines:
            if aim.is_cpp and not self._copy.build():
                raise BrokenWorkshop("the C++ part cannot be built without a mutant")
            begun = time.monotonic()
            status = self._verdict(aim.target, aim.is_cpp, 900.0)
            if status is not Status.SURVIVED:
                raise BrokenWorkshop(
                    f"without a mutant {tests} end as {status.value}: see {self._copy.log}"
                )
            self._baselines[tests] = time.monotonic() - begun
        return self._baselines[tests]

    def _verdict(self, target: Target, is_cpp: bool, patience: float) -> Status:
        pytest = (sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider")
        commands = [(*pytest, "--hypothesis-seed=0", *target.runs)]
        if is_cpp and CPP_TESTS in target.tests:
            commands.insert(0, (str(self._copy.cpp_build / CPP_TESTS),))
        deadline = time.monotonic() + patience
        for command in commands:
            status = self._copy.run(command, deadline - time.monotonic())
            if status is None:
                return Status.TIMEOUT
            if status != 0:
                return Status.CAUGHT
        return Status.SURVIVED
