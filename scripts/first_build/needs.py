"""Checks the needs of a build on this machine, before anything is downloaded.

    python3 -m scripts.first_build.needs .venv

Prints nothing if nothing is missing. Otherwise prints one line for each missing need, with its fix,
and ends with status 1. Pure except `main`: each check gets its input as arguments.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from .torch_choice import gpu_names

LEAST_PYTHON = (3, 11)
GIB = 1 << 30
CPU_BYTES = 4 * GIB
"""Disk bytes needed by an environment with a CPU build of torch, pip's unpacked files, and the
compiled part."""
CUDA_BYTES = 14 * GIB
"""Disk bytes needed by an environment with a CUDA build of torch and its libraries, pip's unpacked
files, and the compiled part."""
TEMPORARY_BYTES = 1 * GIB
"""Bytes needed in the folder for temporary files: the largest wheel."""
COMPILERS = ("c++", "g++", "clang++")
COMPILE_SECONDS = 60.0
SAMPLE = "#include <concepts>\n#include <span>\nint main() { return std::span<int>{}.size(); }\n"
"""A C++ source text: a C++20 compiler accepts it, and an older compiler rejects it."""
_FEDORA = {"compiler": "gcc-c++", "venv": "{0}", "headers": "{0}-devel"}
PACKAGES = {
    "apt-get": {"compiler": "g++", "venv": "{0}-venv", "headers": "{0}-dev"},
    "dnf": _FEDORA,
    "zypper": _FEDORA,
}
"""Names of the packages a build needs, by package manager, then by need. {0} stands for the
interpreter, for example python3.12."""


class Lack(NamedTuple):
    """One missing need of the build. `what`: text describing it. fix: text describing its fix."""

    what: str
    fix: str

    def __str__(self) -> str:
        return f"{self.what}: {self.fix}"


def system_lack(system: str) -> Lack | None:
    """Return the missing need if the system is not Linux, otherwise None. system: the value of
    platform.system()."""
    if system == "Linux":
        return None
    return Lack(f"this is {system}", "tasuki runs on Linux; use a Linux machine or container")


def python_lack(version: Sequence[int], executable: str) -> Lack | None:
    if tuple(version[:2]) >= LEAST_PYTHON:
        return None
    least, found = _dotted(LEAST_PYTHON), _dotted(version[:2])
    return Lack(
        f"{executable} is Python {found}, and tasuki needs {least} or newer",
        f"install one, then name it: make demo PYTHON=python{least}",
    )


def venv_lack(found: Mapping[str, bool], install: str) -> Lack | None:
    """Return the missing need if this Python cannot make environments, otherwise None. found: for
    venv and ensurepip, True if this Python has the module."""
    missing = [name for name, there in found.items() if not there]
    if not missing:
        return None
    return Lack(f"this Python cannot make environments (no {' and no '.join(missing)})", install)


def headers_lack(include: Path, install: str) -> Lack | None:
    """Return the missing need if Python's C headers are missing, otherwise None. include: their
    expected folder."""
    if (include / "Python.h").is_file():
        return None
    return Lack(f"{include} has no Python.h, which the extension is compiled with", install)


def compiler_lack(environment: Mapping[str, str], install: str) -> Lack | None:
    """Compile a few lines with the compiler CMake would choose: CXX, otherwise the first of
    COMPILERS. Returns the missing need if it fails, otherwise None."""
    named = shlex.split(environment.get("CXX", ""))
    path = environment.get("PATH", os.defpath)
    if named and shutil.which(named[0], path=path) is None:
        return Lack(f"CXX names {named[0]}, which is not there", f"correct CXX, or {install}")
    found = named or [name for name in COMPILERS if shutil.which(name, path=path)][:1]
    if not found:
        return Lack("no C++ compiler is there", install)
    try:
        ran = subprocess.run(
            [*found, "-std=c++20", "-fsyntax-only", "-x", "c++", "-"],
            input=SAMPLE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=COMPILE_SECONDS,
            env=dict(environment),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Lack(f"the C++ compiler {found[0]} does not run ({error})", install)
    if ran.returncode == 0:
        return None
    why = next((line for line in ran.stdout.splitlines() if "error" in line), "it fails")
    return Lack(
        f"the C++ compiler {found[0]} takes no C++20 ({why.strip()})",
        "name one that does, as g++ 11 or clang++ 14: make demo CXX=g++-12",
    )


def disk_lack(folder: Path, free: int, needed: int, fix: str) -> Lack | None:
    if free >= needed:
        return None
    return Lack(f"{folder} has {free / GIB:.1f} GiB free of {needed / GIB:.0f} needed", fix)


def lacks(venv: Path, environment: Mapping[str, str]) -> Iterator[Lack]:
    """Yield the missing needs of this machine and interpreter. venv: folder of the environment to
    make; it need not exist. With a wrong interpreter its other checks are skipped."""
    wrong = [
        *filter(None, (system_lack(platform.system()), python_lack(sys.version_info, _python())))
    ]
    yield from wrong
    found = {name: importlib.util.find_spec(name) is not None for name in ("venv", "ensurepip")}
    include = Path(sysconfig.get_paths()["include"])
    yield from filter(None, (compiler_lack(environment, install_line("compiler")),))
    if not wrong:
        yield from filter(None, (venv_lack(found, install_line("venv")),))
        yield from filter(None, (headers_lack(include, install_line("headers")),))
    yield from _disk_lacks(venv, environment)


def install_line(of: str) -> str:
    """Return the install command of this machine's package manager. `of`: a need named in
    PACKAGES."""
    python = f"python{_dotted(sys.version_info[:2])}"
    for manager, names in PACKAGES.items():
        if shutil.which(manager):
            return f"{manager} install {names[of].format(python)}"
    spoken = {"compiler": "a C++20 compiler", "venv": "venv and ensurepip", "headers": "headers"}
    return f"install {spoken[of]}" + ("" if of == "compiler" else f" of {python}")


def _disk_lacks(venv: Path, environment: Mapping[str, str]) -> Iterator[Lack]:
    if (venv / "torch").exists():
        return
    # An existing environment is made anew, so its space counts as free.
    home = next(folder for folder in (venv, *venv.absolute().parents) if folder.is_dir())
    needed = CUDA_BYTES if gpu_names() and not environment.get("TORCH_ARGS") else CPU_BYTES
    temporary = Path(tempfile.gettempdir())
    if os.stat(str(temporary)).st_dev == os.stat(str(home)).st_dev:
        needed += TEMPORARY_BYTES
    else:
        free = shutil.disk_usage(str(temporary)).free
        fix = "free some, or name another folder: TMPDIR=/folder make demo"
        yield from filter(None, (disk_lack(temporary, free, TEMPORARY_BYTES, fix),))
    free = shutil.disk_usage(str(home)).free
    fix = "free some, or make the environment elsewhere: make demo VENV=/folder/venv"
    yield from filter(None, (disk_lack(home.absolute(), free, needed, fix),))


def _python() -> str:
    return sys.executable or "python3"


def _dotted(version: Sequence[int]) -> str:
    return ".".join(map(str, version))


def main(arguments: Sequence[str]) -> int:
    """Print the missing needs and return the exit status: 1 if there are any. arguments: the folder
    of the environment."""
    found = list(lacks(Path(arguments[0]), os.environ))
    for lack in found:
        sys.stderr.write(f"tasuki: {lack}\n")
    if found:
        sys.stderr.write("tasuki: nothing was downloaded or changed\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
