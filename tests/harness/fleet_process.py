"""The commands `tasuki dashboard` and `tasuki replay` as child processes."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from tests.harness.http_calls import ask
from tests.harness.waiting import HANG_SECONDS, until


def watching(*more: str) -> AbstractContextManager[str]:
    """Run the fleet's live web page, and yield its HOST:PORT. more: flags of `tasuki dashboard`."""
    return page_of("dashboard", "--port", "0", "--every-seconds", "0.2", *more)


def replaying(recording: Path) -> AbstractContextManager[str]:
    """Run the fleet's web page over a recording, and yield its HOST:PORT."""
    return page_of("replay", str(recording), "--bind", "127.0.0.1:0")


@contextmanager
def page_of(*command: str) -> Iterator[str]:
    """Run a command of `tasuki` serving a web page, and yield the page's HOST:PORT."""
    serving = subprocess.Popen(
        (sys.executable, "-m", "tasuki.cli.main", *command), stdout=subprocess.PIPE, text=True
    )
    assert serving.stdout is not None
    try:
        yield serving.stdout.readline().strip().removeprefix("http://").removesuffix("/")
    finally:
        serving.terminate()
        assert serving.wait(HANG_SECONDS) == 0
        serving.stdout.close()


def nodes_of(address: str, wanted: Callable[[list[dict[str, Any]]], bool]) -> list[dict[str, Any]]:
    """Return the rows of the dashboard at HOST:PORT by node name, once `wanted` accepts them."""
    rows: list[dict[str, Any]] = []

    def there() -> bool:
        rows[:] = ask(address, "GET", "/fleet/nodes?sort=name").json["rows"]
        return wanted(rows)

    until(there, "the dashboard does not show its nodes so")
    return rows
