"""How long /health takes while the bodies that cost most are posted: python -m scripts.quiet_health

Means something on a quiet machine only: what the event loop itself may cost is tested in processor
time, by tests/server/test_loop_callbacks.py.
"""

import http.client
import json
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing

from tasuki.cli.embedded import embedded_model
from tasuki.cli.launcher import Daemon

MOST_SECONDS = 0.050
_MIB = 2**20


def _chat(*contents: str) -> bytes:
    messages = [{"role": "user", "content": content} for content in contents]
    return json.dumps({"messages": messages}, ensure_ascii=False).encode()


BODIES: dict[str, Callable[[], bytes]] = {
    "2,000 messages": lambda: _chat(*["hi"] * 2000),
    "4,000 messages": lambda: _chat(*["hi"] * 4000),
    "0.5 MB of mark numbers": lambda: _chat("".join(f"\ue000{n}:" for n in range(64_000))),
    "0.4 MB of text": lambda: json.dumps({"prompt": "so it was " * 40_000}).encode(),
    "30 MB of text": lambda: json.dumps({"prompt": "so it was " * 3_000_000}).encode(),
    "30 MB of lists": lambda: b'{"prompt": [5], "x": [' + b"[]," * (10 * _MIB) + b"[]]}",
}


def asked(address: str, method: str, path: str, body: bytes | None = None) -> tuple[int, float]:
    """Status, and seconds until the whole answer was there."""
    with closing(http.client.HTTPConnection(address, timeout=300)) as connection:
        begun = time.perf_counter()
        connection.request(method, path, body, {"Content-Type": "application/json"})
        reply = connection.getresponse()
        reply.read()
        return reply.status, time.perf_counter() - begun


def longest_health(address: str, body: bytes) -> tuple[int, float, int, float]:
    """The body's status and seconds; probes meanwhile, and the longest of them in seconds."""
    ended: list[tuple[int, float]] = []
    poster = threading.Thread(
        target=lambda: ended.append(asked(address, "POST", "/tokenize", body))
    )
    poster.start()
    probes = []
    while poster.is_alive() or not probes:
        status, seconds = asked(address, "GET", "/health")
        assert status == 200, status
        probes.append(seconds)
        time.sleep(0.002)
    poster.join()
    return *ended[0], len(probes), max(probes)


def main() -> int:
    """1 where a probe took longer than MOST_SECONDS."""
    flags = ("--model", str(embedded_model()), "--http-bind", "127.0.0.1:0", "--arena-mib", "64")
    node = Daemon("serve", [*flags, "--device", "cpu"], "127.0.0.1:0")
    worst = 0.0
    try:
        node.wait_ready()
        address = node.http_address
        assert address is not None
        print(f"{'body':<24}{'status':>8}{'seconds':>9}{'probes':>8}{'longest /health':>18}")
        for name, build in BODIES.items():
            status, seconds, probes, longest = longest_health(address, build())
            worst = max(worst, longest)
            print(f"{name:<24}{status:>8}{seconds:>9.2f}{probes:>8}{1000 * longest:>15.1f} ms")
    finally:
        node.stop()
    return int(worst > MOST_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
