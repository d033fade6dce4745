"""Clients that put load on a pair, and what they counted beside what the server did.

A row holds where no request failed and the client's sum of cached tokens equals the server's count;
of a client that keeps no count the server's is shown alone. Traffic stays on loopback.
"""

import os
import re
import subprocess
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from scripts.clients.runs import runs
from scripts.common.command import head, row, show
from scripts.common.daemons import Pair
from tasuki.model.named_checkpoints import embedded_model
from tests.harness.daemons import flags

CLIENTS = (
    *("aiperf", "evalscope", "guidellm", "locust"),
    *("inference-perf", "vllm", "genai-bench"),
)
_SECONDS = 900


def usable_tokens(address: str) -> int:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as reply:
        pattern = r"^tasuki_request_usable_tokens_total (\S+)$"
        (found,) = re.findall(pattern, reply.read().decode(), re.MULTILINE)
    return int(float(found))


def _ran(client: str, address: str, folder: Path) -> bool:
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
        show(row(client, f"no result: {error!r}; see {folder}/output", "", "", "", ""))
        return False
    cached = "does not count" if counts.cached_tokens is None else str(counts.cached_tokens)
    show(row(client, counts.requests, counts.failed, cached, counted, f"{spent:.0f} s"))
    agrees = counts.requests > 0 and not counts.failed and counts.cached_tokens in (None, counted)
    return done.returncode == 0 and agrees


def run_load(clients: Sequence[str], folder: Path) -> bool:
    """Prints a table, a row a client; whether every row holds. folder: theirs to write in."""
    common = flags(arena_mib=256)
    http = ("--http-bind", "127.0.0.1:0", "--served-model-name", "embedded")
    columns = ("requests", "failed", "cached, its sum", "cached, the server's", "took")
    show(head("client", *columns))
    good = True
    with Pair(common, (*common, *http)) as pair:
        for client in clients:
            (folder / client).mkdir()
            good &= _ran(client, pair.decode.http_address, folder / client)
    return good
