"""The unmodified smg as a process of its own, and what it says of itself.

Owns the process from its start to its end; it may be killed and started again at its address. One
thread.
"""

import json
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tasuki.bench.errors import BenchError
from tasuki.bench.load.cpu_by_role import CpuSample, sample

SECONDS = 600.0
"""Within which it has to be ready."""
_ASK_SECONDS = 30.0
LOOKUP = "smg_kv_index_lookup_seconds"
LOOP_DELAY = "smg_tokio_event_loop_delay_seconds"
EVENT_LAG = "smg_kv_event_lag_seconds"
BLOCKS = "smg_kv_index_blocks"
SUBSCRIPTIONS = "smg_kv_event_subscriptions_total"
SELECTIONS = "smg_worker_selection_total"
TROUBLE = (
    "smg_kv_event_gaps_total",
    "smg_kv_event_parentless_blocks_total",
    "smg_kv_event_resyncs_total",
    "smg_tokio_event_loop_stalls_total",
)
_WANTED = (LOOKUP, LOOP_DELAY, EVENT_LAG, BLOCKS, SUBSCRIPTIONS, SELECTIONS, *TROUBLE)
"""Of some 60 series a node."""
_BOUND = re.compile(r'le="([^"]*)"')
BY_CACHE_ALONE = ("--worker-warmup-secs", "0", "--worker-warmup-divert-every", "0")
"""Its defaults send one hit in eight to a node that holds little."""


def versions() -> dict[str, str]:
    return {name: version(name) for name in ("smg", "smg-grpc-proto", "grpcio")}


class GatewayProcess:
    def __init__(self, nodes: Sequence[str], flags: Sequence[str], log: Path) -> None:
        """nodes: HOST:PORT of each. Started by start()."""
        self.address = f"127.0.0.1:{_free_port()}"
        self._metrics = f"127.0.0.1:{_free_port()}"
        self._nodes = nodes
        self._flags = flags
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> float:
        """When, on the monotonic clock. REQUIRES: it is not running."""
        _, _, port = self.address.rpartition(":")
        _, _, metrics = self._metrics.rpartition(":")
        command = [
            *(sys.executable, "-m", "smg", "launch", "--host", "127.0.0.1", "--port", port),
            *("--prometheus-host", "127.0.0.1", "--prometheus-port", metrics),
            *("--log-level", "warn", "--policy", "cache_aware", *self._flags),
            *("--worker-urls", *(f"grpc://{node}" for node in self._nodes)),
        ]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, cwd=self._log.parent
            )
        return time.monotonic()

    def kill(self) -> None:
        """Idempotent."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def wait_ready(self) -> None:
        """Until all nodes are registered and their events are subscribed to. Raises BenchError."""
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            if self.registered() >= len(self._nodes) and self.subscribed() >= len(self._nodes):
                return
            if self._process is None or self._process.poll() is not None:
                raise BenchError(f"smg has ended: {self.last_words()}")
            time.sleep(0.25)
        raise BenchError(f"smg has not registered its workers: {self.last_words()}")

    def registered(self) -> int:
        """Nodes that it holds to be healthy, once it has a tokenizer."""
        workers = self._asked("/workers").get("workers", [])
        tokenizers = self._asked("/v1/tokenizers").get("tokenizers", [])
        return sum(bool(each.get("is_healthy")) for each in workers) if tokenizers else 0

    def subscribed(self) -> int:
        return int(self.metrics().get(SUBSCRIPTIONS, 0))

    def blocks(self) -> int:
        """In its index, over all nodes."""
        return int(self.metrics().get(BLOCKS, 0))

    def cpu(self) -> CpuSample:
        assert self._process is not None, "it runs"
        return sample(self._process.pid)

    def cpu_seconds(self) -> float:
        """Of all that it did in this life."""
        return sum(self.cpu().processes.values())

    def metrics(self) -> dict[str, float]:
        """Those that are wanted: by sample name, over all labels but `le`, which stands behind the
        name in braces; empty where it does not answer."""
        try:
            with urllib.request.urlopen(
                f"http://{self._metrics}/metrics", timeout=_ASK_SECONDS
            ) as answer:
                text = answer.read().decode()
        except (OSError, urllib.error.URLError):
            return {}
        found: dict[str, float] = {}
        for line in text.splitlines():
            if line.startswith(_WANTED):
                label, _, value = line.rpartition(" ")
                name, _, labels = label.partition("{")
                if (bound := _BOUND.search(labels)) is not None:
                    name += f"{{{bound[1]}}}"
                found[name] = found.get(name, 0.0) + float(value)
        return found

    def last_words(self) -> str:
        """The end of what it has written."""
        return " | ".join(self._log.read_text(errors="replace").splitlines()[-8:])

    def _asked(self, path: str) -> dict[str, Any]:
        try:
            with urllib.request.urlopen(
                f"http://{self.address}{path}", timeout=_ASK_SECONDS
            ) as answer:
                found: dict[str, Any] = json.loads(answer.read())
                return found
        except (OSError, urllib.error.URLError, ValueError):
            return {}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
