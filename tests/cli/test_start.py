"""Tests of a starting node: its messages, and the cost of its first answer."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasuki.cli.launcher import Daemon
from tasuki.model.named_checkpoints import embedded_model
from tasuki.proto import inference_pb2 as pb
from tasuki.server.daemon.startup import Served, reachable
from tests.harness.daemons import Node, flags
from tests.harness.http_calls import fetched
from tests.harness.running_nodes import HTTP, needs_nixl, node_pair, running
from tests.harness.waiting import until

FIRST_ANSWER_SECONDS = 10.0


@pytest.fixture(scope="module")
def alpha() -> Iterator[Node]:
    with running(Node("serve", *flags(), *HTTP, "--name", "alpha")) as node:
        until(lambda: shown_by(node), "no curl is shown")
        yield node


def shown_by(node: Node) -> list[str]:
    return [line for line in node.last_words if line.startswith("  try")]


def test_a_start_says_what_it_loads_and_then_where_it_is_served(alpha: Node) -> None:
    overview = json.loads(fetched(alpha.http_address, "/debug/overview"))
    assert overview["about"]["node"] == "alpha"
    page = f"http://{alpha.http_address}/"
    words = alpha.last_words
    loading = next(n for n, line in enumerate(words) if "loading " in line)
    weights = next(n for n, line in enumerate(words) if "weights: " in line)
    ready = words.index("alpha (fused) is ready: embedded")
    assert loading < weights < ready
    assert "as float32 on cpu" in words[loading]
    assert " tensors, " in words[weights] and " GiB " in words[weights]
    said = {line.split("  ")[1].strip(): line for line in words[ready + 1 : ready + 5]}
    assert set(said) == {"page", "OpenAI, Anthropic", "gRPC", "try"}
    assert said["page"].endswith(page) and said["OpenAI, Anthropic"].endswith(f"{page}v1")
    assert said["gRPC"].endswith(alpha.address)
    assert not any("peer_copy" in line for line in words)


def test_the_curl_that_is_shown_is_answered(alpha: Node) -> None:
    (shown,) = shown_by(alpha)
    command = shlex.split(shown.partition("curl")[2])
    done = subprocess.run(
        ["curl", "-sS", "-m", "60", *command], capture_output=True, check=True, timeout=90
    )
    assert json.loads(done.stdout)["choices"][0]["message"]["content"]


def test_a_log_for_machines_has_no_other_line() -> None:
    with running(Node("serve", *flags(), *HTTP, "--log-format", "json")) as node:
        pass
    lines = [json.loads(line) for line in node.last_words]
    (ready,) = [line for line in lines if line["message"] == "ready"]
    assert (ready["grpc"], ready["http"]) == (node.address, node.http_address)
    assert ready["page"] == f"http://{node.http_address}/" and ready["role"] == "fused"


@needs_nixl
def test_a_pair_says_who_answers_clients() -> None:
    with node_pair(prefill=HTTP, decode=HTTP) as (prefill, decode):
        pass
    said = [" ".join(node.last_words) for node in (prefill, decode)]
    assert "prefill (prefill) is ready" in said[0] and "decode (decode) is ready" in said[1]
    assert "curl" not in said[0] and "curl http://" in said[1]
    assert not any("peer_copy" in words for words in said)


@needs_nixl
def test_nodes_of_two_dtypes_refuse_each_other_and_name_the_flag() -> None:
    with (
        running(Node("prefill", *flags(dtype="float32"))) as prefill,
        running(Node("decode", *flags(dtype="bfloat16"), "--prefill", prefill.address)) as decode,
    ):
        until(lambda: "the same --dtype" in " ".join(decode.last_words), decode.story)
        (peer,) = decode.stats().prefill_nodes
        assert peer.state == pb.PREFILL_NODE_STATE_REFUSED
    (line, *_) = [line for line in decode.last_words if "contract mismatch" in line]
    assert line.endswith("give both nodes the same --dtype, bfloat16 or float32")


@pytest.mark.parametrize(
    ("bound", "shown"),
    [
        ("0.0.0.0:8000", "127.0.0.1:8000"),
        ("[::]:8000", "[::1]:8000"),
        ("10.0.0.5:1", "10.0.0.5:1"),
        ("node-1:1", "node-1:1"),
    ],
)
def test_an_unspecified_host_is_shown_as_one_that_can_be_asked(bound: str, shown: str) -> None:
    assert reachable(bound) == shown


def test_tls_and_keys_are_in_the_curl() -> None:
    about = {"node": "n", "role": "decode", "model": "m"}
    (shown,) = [
        line
        for line in Served(about, "127.0.0.1:1", "127.0.0.1:2", tls=True, keyed=True).lines()
        if "curl" in line
    ]
    assert "https://127.0.0.1:2/v1/" in shown and "--cacert" in shown and "Bearer" in shown


def test_the_first_answer_costs_little_processor_time(tmp_path: Path) -> None:
    """Bound the cost of two commands with an installed package and a checkpoint on disk, including
    every import."""
    daemon = Daemon("serve", ["--model", str(embedded_model()), "--http-bind", "127.0.0.1:0"])
    try:
        daemon.wait_ready()
        assert daemon.http_address is not None
        body = {"messages": [{"role": "user", "content": "Where?"}], "max_tokens": 16}
        done = subprocess.run(
            [
                *("curl", "-sS", "-m", "60", "-H", "Content-Type: application/json"),
                *("-d", json.dumps(body), f"http://{daemon.http_address}/v1/chat/completions"),
            ],
            capture_output=True,
            check=True,
            timeout=90,
        )
        assert json.loads(done.stdout)["usage"]["completion_tokens"] > 0
        assert _processor_seconds(daemon.pid) <= FIRST_ANSWER_SECONDS
    finally:
        assert daemon.stop() == 0


def _processor_seconds(pid: int) -> float:
    """Return the processor time of a process, its ended children and its live ones, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    own = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    threads = Path(f"/proc/{pid}/task").iterdir()
    children = {int(child) for task in threads for child in (task / "children").read_text().split()}
    return own + sum(map(_processor_seconds, children))


def test_what_cannot_start_is_said_before_anything_is_loaded() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tasuki.cli.main", "serve", *flags(), "--host", "0.0.0.0"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 1 and done.stderr.count("\n") == 1, done.stderr
    assert "http_bind 0.0.0.0:" in done.stderr and "--tls-cert" in done.stderr
