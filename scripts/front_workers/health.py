"""How late a node's event loops are: /health asked for again and again, on a new connection each
time, so that every front worker is asked."""

import threading
import time
from http.client import HTTPConnection

from tasuki.bench.load.figures import Figures

_PAUSE_SECONDS = 0.02


class HealthProbe:
    """Owns a thread. Life: start, stop."""

    def __init__(self, address: str) -> None:
        """address: HOST:PORT of the node's HTTP."""
        self._address = address
        self._seconds: list[float] = []
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> Figures:
        """Return milliseconds from the call to the answer."""
        self._ends.set()
        self._thread.join()
        ordered = sorted(self._seconds)
        shares = {"p50": 0.5, "p99": 0.99, "worst": 1.0}
        return {
            name: round(1e3 * ordered[min(len(ordered) - 1, int(share * len(ordered)))], 2)
            for name, share in shares.items()
            if ordered
        }

    def _run(self) -> None:
        while not self._ends.wait(_PAUSE_SECONDS):
            begun = time.monotonic()
            connection = HTTPConnection(self._address, timeout=30)
            connection.request("GET", "/health", headers={"Connection": "close"})
            connection.getresponse().read()
            connection.close()
            self._seconds.append(time.monotonic() - begun)
