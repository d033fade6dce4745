"""A real Prometheus on loopback, for tests; skips with a reason where there is none."""

import json
import shutil
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.harness.daemons import until


class Prometheus:
    def __init__(self, address: str) -> None:
        self.address = address

    def query(self, expr: str) -> list[dict[str, Any]]:
        """The samples that the expression has now."""
        given = urllib.parse.urlencode({"query": expr})
        url = f"http://{self.address}/api/v1/query?{given}"
        with urllib.request.urlopen(url, timeout=5) as reply:
            answer = json.loads(reply.read())
        assert answer["status"] == "success", answer
        found: list[dict[str, Any]] = answer["data"]["result"]
        return found

    def answers(self) -> bool:
        try:
            self.query("up")
        except (OSError, urllib.error.URLError):
            return False
        return True


@contextmanager
def scraping(targets: Sequence[str], folder: Path) -> Iterator[Prometheus]:
    """targets: HOST:PORT of nodes' HTTP servers, scraped twice a second."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("prometheus is not installed: install Debian's prometheus")
    config = folder / "prometheus.json"
    jobs = [{"job_name": "tasuki", "static_configs": [{"targets": list(targets)}]}]
    every = {"scrape_interval": "500ms", "scrape_timeout": "500ms"}
    # JSON is YAML.
    config.write_text(json.dumps({"global": every, "scrape_configs": jobs}))
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{chosen.getsockname()[1]}"
    process = subprocess.Popen(
        [
            program,
            f"--config.file={config}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={address}",
        ],
        stderr=subprocess.DEVNULL,
    )
    try:
        server = Prometheus(address)
        until(server.answers, "Prometheus does not answer", 20.0)
        yield server
    finally:
        process.terminate()
        process.wait(10)
