"""pytest without the seconds that its imports take: forked from a process that has made them.

As a program it reads an order a line, {"arguments": [...], "log": PATH}, and answers with the id of
the process that runs pytest so, then with its exit status. Only what others wrote is imported
beforehand, never the package, whose sources change between orders.
"""

import importlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

_IMPORTED = (
    *("torch", "numpy", "grpc.aio", "aiohttp.web", "google.protobuf.json_format", "jinja2"),
    *("hypothesis", "msgspec", "tokenizers", "safetensors.torch", "prometheus_client"),
    *("pytest", "_pytest.assertion.rewrite", "grpc_health.v1.health_pb2_grpc"),
)
_KNOWN = "ignore:Module already imported:pytest.PytestAssertRewriteWarning"
"""Of plugins whose own assertions are then not shown in full."""


class WarmPytest:
    """Owns the process and what it starts. Thread rule: one thread."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        """folder: where pytest runs. environment: of it."""
        self._process = subprocess.Popen(
            # -P: its own folder's modules are none of the tests'.
            (sys.executable, "-P", str(Path(__file__).resolve())),
            bufsize=0,
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def run(self, arguments: Sequence[str], log: Path, seconds: float) -> int | None:
        """The exit status; None where it did not end in time."""
        assert self._process.stdin is not None and self._process.stdout is not None
        order = {"arguments": list(arguments), "log": str(log)}
        self._process.stdin.write(f"{json.dumps(order)}\n".encode())
        self._process.stdin.flush()
        child = int(self._process.stdout.readline())
        ended, _, _ = select.select([self._process.stdout], [], [], max(seconds, 1.0))
        # What a test left behind ends too.
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        status = int(self._process.stdout.readline())
        return status if ended else None

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def main() -> None:
    for name in _IMPORTED:
        importlib.import_module(name)
    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if child == 0:
            sys.exit(_pytest(order["arguments"], order["log"]))
        print(child, flush=True)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _pytest(arguments: list[str], log: str) -> int:
    import pytest

    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    written = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(written, stream)
    # As `python -m pytest` does.
    sys.path.insert(0, os.getcwd())
    sys.argv = ["pytest", *arguments]
    return int(pytest.main(["-W", _KNOWN, *arguments]))


if __name__ == "__main__":
    main()
