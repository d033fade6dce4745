"""A copy of the checkout, importable as the package tasuki, beside the editable install.

Owns a folder and the processes in it. The copy is on PYTHONPATH before the editable install. An
empty module of the finder's name hides the install's finder. The checkout is only read. Thread
rule: one thread a copy. Invariant: its processes have a deadline, and end with all their children.
"""

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path

import pybind11

CPP_TESTS = "cpp_cache_tests"
"""Name of the C++ unit tests' program."""
_MADE = {"__pycache__", ".hypothesis"}
"""Names of folders made by Python and by tests; they are not part of a copy."""


def tracked(root: Path) -> list[Path]:
    """Return the existing files git tracks or would add, relative to the root."""
    command = ("git", "ls-files", "--cached", "--others", "--exclude-standard", "-z")
    done = subprocess.run(command, cwd=root, check=True, stdout=subprocess.PIPE, text=True)
    paths = [Path(name) for name in done.stdout.split("\0") if name]
    return [path for path in paths if (root / path).is_file()]


class PackageCopy:
    def __init__(self, root: Path, folder: Path) -> None:
        """Copy the checkout. root: folder of the checkout. folder: folder of the copy. Only
        differing files are rewritten there, so builds in it redo only the necessary parts."""
        self._tree = folder / "tree"
        self.place = self._tree / "tasuki"
        """Folder of the copied package."""
        self.cpp_build = folder / "cpp"
        self.log = folder / "last.log"
        """File with the output of the last command."""
        self.changed = self._take(root)
        """The files rewritten in the copy, relative to the checkout."""
        site = Path(sysconfig.get_paths()["purelib"])
        for finder in site.glob("_editable_*tasuki*.py"):
            (self._tree / finder.name).touch()
        self._name = f"_cpp_cache{sysconfig.get_config_var('EXT_SUFFIX')}"
        self._installed = site / "tasuki" / "pycache" / self._name
        self.load_installed()

    def _take(self, root: Path) -> list[Path]:
        paths, changed = tracked(root), []
        known = {self.place / path for path in paths}
        for path in self.place.rglob("*"):
            if path.is_file() and path not in known and not _MADE.intersection(path.parts):
                path.unlink()
        for path in paths:
            source, here = (root / path).read_bytes(), self.place / path
            if not here.is_file() or here.read_bytes() != source:
                here.parent.mkdir(parents=True, exist_ok=True)
                here.write_bytes(source)
                here.chmod((root / path).stat().st_mode)
                changed.append(path)
        return changed

    @property
    def environment(self) -> dict[str, str]:
        """Return environment variables making Python import the copy as the package."""
        beside = str(Path(sys.executable).parent)
        return {
            **os.environ,
            "PATH": f"{beside}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(self._tree),
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
        }

    def load_installed(self) -> None:
        """Put the checkout's built C++ extension into the copy again."""
        self._load(self._installed)

    def _load(self, extension: Path) -> None:
        # As a new file, because a running process may have mapped the old one.
        here = self.place / "pycache" / self._name
        shutil.copy2(extension, here.with_suffix(".new"))
        here.with_suffix(".new").replace(here)

    def configure(self, *definitions: str) -> bool:
        """Configure the build of the C++ part. Returns True on success. definitions: variables for
        cmake."""
        return not self.run(
            (
                *("cmake", "-G", "Ninja", "-S", str(self.place / "cpp_cache")),
                *("-B", str(self.cpp_build), "-DSKBUILD=ON", "-DTASUKI_TESTS=ON"),
                # Debug: without optimization at link time a file is built within seconds.
                "-DCMAKE_BUILD_TYPE=Debug",
                *(
                    f"-DPython_EXECUTABLE={sys.executable}",
                    f"-Dpybind11_DIR={pybind11.get_cmake_dir()}",
                ),
                *definitions,
            ),
            300.0,
        )

    def build_tests(self) -> bool:
        """Build the C++ tests. Returns True if they compile."""
        return self._built(CPP_TESTS)

    def build(self) -> bool:
        """Build the extension and the C++ tests. Returns True if they compile; then the copy loads
        the extension."""
        if not self._built("_cpp_cache", CPP_TESTS):
            return False
        self._load(self.cpp_build / self._name)
        return True

    def _built(self, *targets: str) -> bool:
        command = ("cmake", "--build", str(self.cpp_build), "-j1", "--target", *targets)
        return self.run(command, 1800.0) == 0

    def run(
        self, command: Sequence[str], seconds: float, more: Mapping[str, str] | None = None
    ) -> int | None:
        """Run a command in the copy. Returns the exit status, or None if the command did not end
        within `seconds`. more: additional environment variables."""
        with self.log.open("wb") as log:
            process = subprocess.Popen(
                command,
                cwd=self.place,
                env={**self.environment, **(more or {})},
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
