"""Helpers running other programs to their end.

`tasuki` runs in this process; tests read its exit status and its one line of error. Programs of the
harness and daemons run on a host of their own, a network namespace. pytest runs over other test
files, with this project's plugins.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tasuki.cli import main as cli
from tests.harness.forked_daemon import ForkedDaemon
from tests.harness.namespaces import inside, why_not

_SECONDS = 250


def program(name: str, fix: str) -> str:
    """Return the path of a program. Skips the test if it is not installed. fix: text about its
    installation."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed: {fix}")
    return path


def finished(command: Sequence[object], **options: Any) -> "subprocess.CompletedProcess[str]":
    """Return the command's result after its end, successful or not. options: subprocess.run's."""
    words = [str(word) for word in command]
    return subprocess.run(words, capture_output=True, text=True, **{"timeout": _SECONDS, **options})


def output_of(command: Sequence[object], **options: Any) -> str:
    """Run a command to its end, and return its stdout. Its exit status must be 0."""
    done = finished(command, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


ROOT = Path(__file__).parents[2]


def require_namespaces() -> None:
    """Skip the test if this machine has no network namespaces."""
    if (reason := why_not()) is not None:
        pytest.skip(reason)


def run_in(space: str, module: str, *words: str) -> None:
    """Run `python -m MODULE WORDS` to its end in the network namespace `space`. Its exit status
    must be 0."""
    inside = ("ip", "netns", "exec", space)
    output_of([*inside, sys.executable, "-m", module, *words], cwd=ROOT)


def daemon_of(space: str) -> Callable[..., ForkedDaemon]:
    """Return a function starting a Node's daemon in the network namespace `space`."""
    return partial(ForkedDaemon, main=partial(_serve_in, space))


def _serve_in(space: str, arguments: list[str]) -> int:
    # The child still has one thread, so all of it is moved into the namespace.
    with inside(space):
        return cli.main(arguments)


_RECORD = re.compile(r"\d{4}-\d\d-\d\d [\d:,]+ INFO |I\d{4} [\d:.]+ +\d+ \w+\.cc:\d+\] ")
"""Pattern of a line of the log, or of gRPC's core: gRPC writes to stderr when a server goes
away."""


def exit_status(argv: Sequence[str]) -> int:
    """Run `tasuki ARGV` in this process, and return its exit status, by return or by exit."""
    try:
        return cli.main(list(argv))
    except SystemExit as stopped:
        return int(str(stopped.code))


def error_line(captured: pytest.CaptureFixture[str]) -> str:
    """Return the only line written to stderr since the last read, without lines of the log. Stdout
    must be empty."""
    out, err = captured.readouterr()
    lines = [line for line in err.splitlines() if not _RECORD.match(line)]
    assert out == "" and err.endswith("\n") and len(lines) == 1, err
    return lines[0] + "\n"


def pytest_run(
    folder: Path, plugin: str, *more: str, **environment: str
) -> "subprocess.CompletedProcess[str]":
    """Run pytest over `folder`, and return its result. plugin: a module there or in this
    repository. more: further arguments."""
    ini = folder / "pytest.ini"
    ini.write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", plugin, folder, *more]
    return finished(
        [*command, "--rootdir", folder, "-c", ini],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": f"{folder}:{ROOT}", **environment},
    )
