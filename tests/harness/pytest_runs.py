"""Runs of pytest over test files of their own, with what this project adds to it."""

import os
import subprocess
import sys
from pathlib import Path

from tests.harness.programs import finished

ROOT = Path(__file__).parents[2]


def pytest_run(
    folder: Path, plugin: str, *more: str, **environment: str
) -> "subprocess.CompletedProcess[str]":
    """Of what lies in `folder`. plugin: a module there or of this repository. more: arguments."""
    ini = folder / "pytest.ini"
    ini.write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", plugin, folder, *more]
    return finished(
        [*command, "--rootdir", folder, "-c", ini],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": f"{folder}:{ROOT}", **environment},
    )
