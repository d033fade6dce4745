"""A real Prometheus on loopback, for tests. Tests skip with a reason if there is none."""

import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from tests.harness.http_calls import ask
from tests.harness.processes import free_port
from tests.harness.programs import program
from tests.harness.waiting import HANG_SECONDS, until


class Prometheus:
    def __init__(self, address: str) -> None:
        self.address = address

    def query(self, expr: str) -> list[dict[str, Any]]:
        """Return the current samples of a PromQL expression."""
        given = urlencode({"query": expr})
        answer = ask(self.address, "GET", f"/api/v1/query?{given}").json
        assert answer["status"] == "success", answer
        found: list[dict[str, Any]] = answer["data"]["result"]
        return found

    def answers(self) -> bool:
        try:
            self.query("up")
        except (OSError, ValueError):
            # It reports in plain text that it is not ready.
            return False
        return True


@contextmanager
def scraping(targets: Sequence[str], folder: Path) -> Iterator[Prometheus]:
    """Yield a running Prometheus. targets: HOST:PORT of nodes' HTTP servers, scraped twice a
    second."""
    prometheus = program("prometheus", "install Debian's prometheus")
    config = folder / "prometheus.json"
    jobs = [{"job_name": "tasuki", "static_configs": [{"targets": list(targets)}]}]
    every = {"scrape_interval": "500ms", "scrape_timeout": "500ms"}
    # JSON is YAML.
    config.write_text(json.dumps({"global": every, "scrape_configs": jobs}))
    address = f"127.0.0.1:{free_port()}"
    process = subprocess.Popen(
        [
            prometheus,
            f"--config.file={config}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={address}",
        ],
        stderr=subprocess.DEVNULL,
    )
    try:
        server = Prometheus(address)
        until(server.answers, "Prometheus does not answer")
        yield server
    finally:
        process.terminate()
        process.wait(HANG_SECONDS)
