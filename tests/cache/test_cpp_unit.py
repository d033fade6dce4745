"""Builds and runs the C++ unit tests, plain and under the sanitizers."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCTEST = [Path(prefix) / "include/doctest/doctest.h" for prefix in ("/usr", "/usr/local")]


def run(*command: str | Path) -> None:
    done = subprocess.run(
        [str(part) for part in command],
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert done.returncode == 0, done.stdout[-8000:]


def tool(name: str) -> str:
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def built_library() -> Path | None:
    """Return the library of the extension's own build, if no source is newer; else None."""
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    found = next(ROOT.glob(f"build/{tag}-*/libcpp_cache.a"), None)
    sources = [ROOT / "cpp_cache/CMakeLists.txt", *ROOT.glob("cpp_cache/*/*.*")]
    if found is None or any(source.stat().st_mtime > found.stat().st_mtime for source in sources):
        return None
    return found


@pytest.mark.timeout(1800)  # a build is slow on a busy machine
@pytest.mark.parametrize(
    "sanitize",
    [
        pytest.param("", id="plain"),
        pytest.param("address,undefined", id="sanitized", marks=pytest.mark.slow),
    ],
)
def test_cpp_units(sanitize: str) -> None:
    cmake = tool("cmake")
    if not any(shutil.which(name) for name in (os.environ.get("CXX", "c++"), "g++", "clang++")):
        pytest.skip("no C++ compiler")
    if not any(header.exists() for header in DOCTEST):
        pytest.skip("doctest is not installed (Debian: doctest-dev)")
    build = ROOT / "build" / "cpp_tests" / (sanitize.replace(",", "_") or "plain")
    library = None if sanitize else built_library()
    run(
        cmake,
        *("-S", ROOT / "cpp_cache", "-B", build),
        "-DTASUKI_TESTS=ON",
        f"-DTASUKI_SANITIZE={sanitize}",
        f"-DTASUKI_LIBRARY={library or ''}",
        f"-DCMAKE_BUILD_TYPE={'Debug' if sanitize else 'Release'}",
    )
    run(cmake, "--build", build, "-j1")
    run(build / "cpp_cache_tests")
