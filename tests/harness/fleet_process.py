"""`tasuki dashboard` as a child process."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.harness.http_calls import ask
from tests.harness.waiting import HANG_SECONDS, until


@contextmanager
def watching(*more: str) -> Iterator[str]:
    """Its HOST:PORT. more: flags."""
    command = (sys.executable, "-m", "tasuki.cli.main", "dashboard", "--port", "0")
    serving = subprocess.Popen(
        [*command, "--every-seconds", "0.2", *more], stdout=subprocess.PIPE, text=True
    )
    assert serving.stdout is not None
    try:
        yield serving.stdout.readline().strip().removeprefix("http://").removesuffix("/")
    finally:
        serving.terminate()
        assert serving.wait(HANG_SECONDS) == 0
        serving.stdout.close()


def nodes_of(address: str, wanted: Callable[[list[dict[str, Any]]], bool]) -> list[dict[str, Any]]:
    """The rows of the dashboard at HOST:PORT by name, once they are as wanted."""
    rows: list[dict[str, Any]] = []

    def there() -> bool:
        rows[:] = ask(address, "GET", "/fleet/nodes?sort=name").json["rows"]
        return wanted(rows)

    until(there, "the dashboard does not show its nodes so")
    return rows
