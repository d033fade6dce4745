"""A daemon run by a bench as a separate process, and its counters.

Owns the process from its start to stop(). The process also ends with its parent. Thread rule: one
thread.
"""

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from select import select
from typing import NamedTuple

from tasuki.bench.errors import BenchError
from tasuki.utils.program import PACKAGE

from .cpu_by_role import CpuSample, sample
from .node_counters import NodeCounters

_READY_SECONDS = 300.0
_STOP_SECONDS = 60.0
_SCRAPE_SECONDS = 60.0


class NodeSample(NamedTuple):
    cpu: CpuSample
    counters: NodeCounters


class NodeProcess:
    """One running daemon. address: HOST:PORT of gRPC. http: HOST:PORT of HTTP. handover: HOST:PORT
    dialled by decode nodes."""

    def __init__(self, role: str, process: "subprocess.Popen[str]", log: Path) -> None:
        self.role = role
        self.pid = process.pid
        self._process = process
        self._log = log
        announced = self._announced()
        self.address: str = announced["ready"]
        self.http: str = announced["http"]
        self.handover: str = announced.get("handover", self.address)

    def _announced(self) -> dict[str, str]:
        assert self._process.stdout is not None
        deadline = time.monotonic() + _READY_SECONDS
        while select([self._process.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
            line = self._process.stdout.readline()
            if not line:
                raise BenchError(f"the {self.role} node has ended: {self.last_words()}")
            if line.startswith("{"):
                announced: dict[str, str] = json.loads(line)
                return announced
        raise BenchError(f"the {self.role} node was not ready within {_READY_SECONDS:.0f} s")

    def last_words(self) -> str:
        """Return the last lines the daemon wrote to stderr."""
        return " | ".join(self._log.read_text(errors="replace").splitlines()[-8:])

    def counters(self) -> NodeCounters:
        with urllib.request.urlopen(
            f"http://{self.http}/metrics", timeout=_SCRAPE_SECONDS
        ) as answer:
            return NodeCounters(answer.read().decode())

    def begin_sample(self) -> NodeSample:
        """Sample the node's counters, then its CPU time. In this order the cost of reading counters
        stays outside the measured interval."""
        counters = self.counters()
        return NodeSample(sample(self.pid), counters)

    def end_sample(self) -> NodeSample:
        cpu = sample(self.pid)
        return NodeSample(cpu, self.counters())


@contextmanager
def node_process(
    role: str, own_flags: Sequence[str], flags: Sequence[str], log: Path
) -> Iterator[NodeProcess]:
    """Start a daemon with HTTP on a free port, and yield it when it is ready. own_flags: flags of
    node_main. flags: flags of the daemon. log: file for its stderr. At the block's end stop the
    daemon, or kill it if it does not stop. Raises BenchError."""
    served = ("--bind", "127.0.0.1:0", "--http-bind", "127.0.0.1:0", "--exit-with-parent")
    program = ("-m", f"{PACKAGE}.bench.load.node_main", role)
    with log.open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, *program, *own_flags, "--", *served, *flags],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            # A terminal's Ctrl-C goes to the bench alone, and the bench stops its nodes in order.
            start_new_session=True,
        )
    try:
        yield NodeProcess(role, process, log)
    finally:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
