"""The smg gateway (a router of another project), unmodified, as a child process in front of
tasuki's nodes.

Also the usable cached pages of a node, as the node's events name them.
"""

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPException
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import __version__ as protobuf_version

from tasuki.pycache._cpp_cache import prefix_hashes
from tasuki.pycache.layout import PAGE_TOKENS
from tests.harness.daemons import Node
from tests.harness.http_calls import Reply, ask, fetched
from tests.harness.processes import free_port
from tests.harness.waiting import HANG_SECONDS

READY_SECONDS = HANG_SECONDS


def protocol_is_there() -> bool:
    """Return True if the gateway's protobuf messages can be imported."""
    return find_spec("smg_grpc_proto") is not None and _protobuf_is_new()


def _protobuf_is_new() -> bool:
    return tuple(map(int, protobuf_version.split(".")[:2])) >= (6, 33)


def require_protocol() -> None:
    """Skip a test module if the gateway's protobuf messages cannot be imported."""
    if find_spec("smg_grpc_proto") is None:
        pytest.skip("smg-grpc-proto is not installed", allow_module_level=True)
    if not _protobuf_is_new():
        pytest.skip("smg-grpc-proto needs protobuf 6.33", allow_module_level=True)


def smg_is_there() -> bool:
    return find_spec("smg") is not None


def require_smg() -> None:
    """Skip a test module if the gateway is not installed."""
    require_protocol()
    if not smg_is_there():
        pytest.skip("smg is not installed", allow_module_level=True)


def in_front_of_pair(prefill: Node, decode: Node) -> tuple[str, ...]:
    """Return flags of a gateway sending prompts to the prefill node and streaming from the decode
    node."""
    return (
        "--pd-disaggregation",
        *("--prefill", f"grpc://{prefill.address}", prefill.handover_address.rpartition(":")[2]),
        *("--decode", f"grpc://{decode.address}"),
    )


class Smg:
    def __init__(self, address: str, metrics_address: str, log: Path) -> None:
        """Set up the gateway, without starting it. address, metrics_address: HOST:PORT."""
        self.address = address
        self.metrics_address = metrics_address
        self.log = log

    def chat(self, headers: dict[str, str] | None = None, **fields: object) -> Reply:
        return ask(self.address, "POST", "/v1/chat/completions", fields, headers)

    def generate(self, model: str, prompt: Sequence[int], tokens: int) -> dict[str, Any]:
        """Request a greedy answer of `tokens` tokens to the token ids `prompt`. Returns the reply
        with its token ids and cached tokens."""
        sampling = {"max_new_tokens": tokens, "ignore_eos": True, "temperature": 0}
        body = {"model": model, "input_ids": list(prompt), "sampling_params": sampling}
        reply = ask(self.address, "POST", "/generate", body)
        assert reply.status == 200, reply
        (answer,) = reply.json
        found: dict[str, Any] = answer
        return found

    def metric(self, name: str) -> float:
        """Return the value of one of the gateway's metrics, summed over all labels."""
        return sum(self.metrics(name).values())

    def metrics(self, name: str) -> dict[str, float]:
        """Return the values of one of the gateway's metrics by labels, written in braces as in the
        metrics text."""
        lines = fetched(self.metrics_address, "/metrics").decode().splitlines()
        found = [line.rsplit(" ", 1) for line in lines if line.startswith((name + "{", name + " "))]
        return {label.removeprefix(name): float(value) for label, value in found}


@contextmanager
def smg(folder: Path, workers: int, *flags: str) -> Iterator[Smg]:
    """Yield a gateway with the nodes `workers` registered; it ends with the block."""
    port, metrics = free_port(), free_port()
    log = folder / "smg.log"
    with log.open("w") as out:
        process = subprocess.Popen(
            [
                sys.executable,
                *("-m", "smg", "launch", "--host", "127.0.0.1", "--port", str(port)),
                *("--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics)),
                *("--log-level", "info", "--disable-circuit-breaker", "--disable-retries"),
                *flags,
            ],
            stdout=out,
            stderr=subprocess.STDOUT,
            cwd=folder,
        )
    gateway = Smg(f"127.0.0.1:{port}", f"127.0.0.1:{metrics}", log)
    try:
        _wait_for(gateway, workers, process)
        yield gateway
    finally:
        # It takes five seconds to end on request, and no test depends on its end.
        process.kill()
        process.wait()


def _wait_for(gateway: Smg, workers: int, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            listed = ask(gateway.address, "GET", "/workers").json["workers"]
            # A worker counts before its tokenizer is here, and until then chats are refused.
            tokenizers = ask(gateway.address, "GET", "/v1/tokenizers").json["tokenizers"]
        except (OSError, HTTPException, KeyError, ValueError):
            listed, tokenizers = [], []
        if len([worker for worker in listed if worker.get("is_healthy")]) >= workers and tokenizers:
            return
        time.sleep(0.1)
    raise AssertionError(f"smg is not ready: {gateway.log.read_text()[-4000:]}")


def usable_pages(node: Node) -> set[bytes]:
    """Return the hashes of the node's cached pages before some stored state; only these pages are
    usable."""
    pages: dict[bytes, bytes] = {}
    usable: set[bytes] = set()
    for event in next(iter(node.client.watch_cache("all"))):
        if event.kind == "page_stored":
            pages[event.prefix] = event.parent
        elif event.kind == "checkpoint_stored":
            place = event.parent if event.tokens % PAGE_TOKENS else event.prefix
            while place in pages and place not in usable:
                usable.add(place)
                place = pages[place]
    return usable


def names_of_pages(text: Sequence[int]) -> list[bytes]:
    """Return the prefix hashes of the text's whole pages, the first one first, without a tenant's
    salt."""
    return prefix_hashes(np.array(text, dtype=np.int32), b"")[1:]
