"""Other programs, run to their end."""

import shutil
import subprocess
from collections.abc import Sequence
from typing import Any

import pytest

_SECONDS = 250


def program(name: str, mend: str) -> str:
    """Its path. Skips where it is not installed; mend: what to do about it."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed: {mend}")
    return path


def finished(command: Sequence[object], **options: Any) -> "subprocess.CompletedProcess[str]":
    """Once it has ended, however it did. options: subprocess.run's."""
    words = [str(word) for word in command]
    return subprocess.run(words, capture_output=True, text=True, **{"timeout": _SECONDS, **options})


def output_of(command: Sequence[object], **options: Any) -> str:
    """What it writes to stdout; its exit status must be 0."""
    done = finished(command, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
