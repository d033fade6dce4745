"""`python -m scripts.clients [CLIENT ...]`: installs each client, runs it against a pair, prints
its counts.

Exit status 0 only where no request failed, and where each client's sum of cached tokens equals the
server's count; a client that keeps no count sends no prompt twice. Traffic
stays on loopback.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from scripts.clients.install import install
from scripts.clients.runs import runs
from scripts.pair import Pair
from tasuki.cli.embedded import embedded_model
from tests.harness.daemons import flags

CLIENTS = ("aiperf", "evalscope", "guidellm", "locust")
_SECONDS = 900


def usable_tokens(address: str) -> int:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as reply:
        pattern = r"^tasuki_request_usable_tokens_total (\S+)$"
        (found,) = re.findall(pattern, reply.read().decode(), re.MULTILINE)
    return int(float(found))


def row(client: str, address: str, folder: Path) -> bool:
    """Runs it and prints its line of a Markdown table."""
    run = runs(f"http://{address}", embedded_model(), folder)[client]
    before, begun = usable_tokens(address), time.monotonic()
    done = subprocess.run(
        run.command,
        cwd=folder,
        env={**os.environ, **run.environment},
        capture_output=True,
        text=True,
        timeout=_SECONDS,
    )
    (folder / "output").write_text(done.stdout + done.stderr, encoding="utf-8")
    spent, counted = time.monotonic() - begun, usable_tokens(address) - before
    try:
        counts = run.read(done.stdout + done.stderr, folder)
    except (OSError, ValueError, KeyError) as error:
        print(f"| {client} | no result: {error!r}; see {folder}/output | | | |", flush=True)
        return False
    cached = "does not count" if counts.cached_tokens is None else str(counts.cached_tokens)
    print(
        f"| {client} | {counts.requests} | {counts.failed} | {cached} | {counted} "
        f"| {spent:.0f} s |",
        flush=True,
    )
    agrees = counts.requests > 0 and not counts.failed and counted == (counts.cached_tokens or 0)
    return done.returncode == 0 and agrees


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.clients", description=__doc__)
    parser.add_argument("clients", nargs="*", choices=[*CLIENTS, []], default=[])
    chosen = parser.parse_args().clients or CLIENTS
    for client in chosen:
        install(client)
    common = flags(arena_mib=256)
    http = ("--http-bind", "127.0.0.1:0", "--served-model-name", "embedded")
    print("| client | requests | failed | cached, its sum | cached, the server's | took |")
    print("| --- | --- | --- | --- | --- | --- |", flush=True)
    good = True
    folder = Path(tempfile.mkdtemp(prefix="tasuki-clients-"))
    with Pair(common, (*common, *http)) as pair:
        for client in chosen:
            (folder / client).mkdir()
            good &= row(client, pair.decode.http_address, folder / client)
    print(f"clients: {'PASSED' if good else 'FAILED'}; outputs are in {folder}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
