"""A copy of the tree in which one mutant at a time is tried; the checkout is never touched.

Owns a folder under build/mutate and what runs in it. The copy stands on PYTHONPATH as the package,
before the editable install, whose finder is hidden by an empty module of its name. Thread rule: one
thread a workshop. Invariant: between trials sources and extension of the copy are the checkout's.
"""

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

from scripts.mutate.mutant import Status
from scripts.mutate.targets import UNIT_TESTS, Aim, Target, tracked

_LEAST_SECONDS = 60.0
_PATIENCE = 6.0


class BrokenWorkshop(RuntimeError):
    """Nothing can be tried here: the tests fail without a mutant, or nothing can be built."""


class Workshop:
    def __init__(self, root: Path, folder: Path) -> None:
        """root: the checkout. folder: replaced."""
        self._root = root
        self._tree = folder / "tree"
        self.place = self._tree / "tasuki"
        """The copy of the checkout."""
        self._cpp_build = folder / "cpp"
        self._baselines: dict[tuple[str, ...], float] = {}
        # The build too: what a mutant left in it is younger than the copied sources.
        for stale in (self._tree, self._cpp_build):
            shutil.rmtree(stale, ignore_errors=True)
        for path in tracked(root):
            (self.place / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / path, self.place / path)
        site = Path(sysconfig.get_paths()["purelib"])
        for finder in site.glob("_editable_*tasuki*.py"):
            (self._tree / finder.name).touch()
        self._suffix = sysconfig.get_config_var("EXT_SUFFIX")
        self._whole = site / "tasuki/pycache" / f"_cpp_cache{self._suffix}"
        """The extension without a mutant."""
        shutil.copy2(self._whole, self._extension)

    @property
    def _extension(self) -> Path:
        return self.place / "pycache" / f"_cpp_cache{self._suffix}"

    def try_out(self, aim: Aim) -> tuple[Status, float]:
        """What the tests say, and how many seconds they took. Raises BrokenWorkshop."""
        if aim.is_cpp and not (self._cpp_build / "build.ninja").exists():
            self._configure()
        patience = max(_LEAST_SECONDS, _PATIENCE * self._baseline(aim))
        file = self.place / aim.path
        source = file.read_bytes()
        begun = time.monotonic()
        file.write_bytes(aim.mutant.edit.applied(source))
        try:
            if aim.is_cpp and not self._build():
                return Status.INVALID, time.monotonic() - begun
            status = self._verdict(aim.target, aim.is_cpp, patience)
        finally:
            file.write_bytes(source)
            shutil.copy2(self._whole, self._extension)
        return status, time.monotonic() - begun

    def _baseline(self, aim: Aim) -> float:
        """Seconds of the target's tests without a mutant, run once."""
        tests = aim.target.tests
        if tests not in self._baselines:
            if aim.is_cpp and not self._build():
                raise BrokenWorkshop("the C++ part cannot be built without a mutant")
            begun = time.monotonic()
            status = self._verdict(aim.target, aim.is_cpp, 900.0)
            if status is not Status.SURVIVED:
                raise BrokenWorkshop(f"without a mutant {tests} end as {status.value}")
            self._baselines[tests] = time.monotonic() - begun
        return self._baselines[tests]

    def _verdict(self, target: Target, is_cpp: bool, patience: float) -> Status:
        pytest = (sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider")
        commands = [(*pytest, "--hypothesis-seed=0", *target.runs)]
        if is_cpp and UNIT_TESTS in target.tests:
            commands.insert(0, (str(self._cpp_build / UNIT_TESTS),))
        deadline = time.monotonic() + patience
        for command in commands:
            status = self._run(command, deadline - time.monotonic())
            if status is None:
                return Status.TIMEOUT
            if status != 0:
                return Status.CAUGHT
        return Status.SURVIVED

    def _configure(self) -> None:
        """Debug, so that a file is built and linked within seconds."""
        done = self._run(
            (
                *("cmake", "-G", "Ninja", "-S", str(self.place / "cpp_cache")),
                *("-B", str(self._cpp_build), "-DSKBUILD=ON", "-DTASUKI_TESTS=ON"),
                *("-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_CXX_FLAGS=-O1 -g0"),
                *(f"-DPython_EXECUTABLE={sys.executable}", f"-Dpybind11_DIR={_pybind11()}"),
            ),
            300.0,
        )
        if done != 0:
            raise BrokenWorkshop("cmake cannot configure the C++ part: is doctest-dev installed?")

    def _build(self) -> bool:
        command = ("cmake", "--build", str(self._cpp_build), "-j1")
        if self._run((*command, "--target", "_cpp_cache", UNIT_TESTS), 900.0) != 0:
            return False
        built = self._cpp_build / f"_cpp_cache{self._suffix}"
        shutil.copy2(built, self._extension)
        return True

    def _run(self, command: tuple[str, ...], seconds: float) -> int | None:
        """The exit status; None where it did not end in time. Whatever it started ends with it."""
        beside = str(Path(sys.executable).parent)
        environment = {
            **os.environ,
            "PATH": f"{beside}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(self._tree),
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
        }
        with (self._tree.parent / "last.log").open("wb") as log:
            process = subprocess.Popen(
                command,
                cwd=self.place,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                return process.wait(max(seconds, 1.0))
            except subprocess.TimeoutExpired:
                return None
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()


def _pybind11() -> str:
    import pybind11

    return str(pybind11.get_cmake_dir())
