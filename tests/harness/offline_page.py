"""`tasuki replay` as a child process: the page over a recording."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.harness.waiting import HANG_SECONDS


@contextmanager
def replaying(recording: Path) -> Iterator[str]:
    """Its HOST:PORT."""
    command = (*(sys.executable, "-m", "tasuki.cli.main"), "replay", str(recording))
    serving = subprocess.Popen(
        [*command, "--bind", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True
    )
    assert serving.stdout is not None
    try:
        yield serving.stdout.readline().strip().removeprefix("http://").removesuffix("/")
    finally:
        serving.terminate()
        assert serving.wait(HANG_SECONDS) == 0
        serving.stdout.close()
