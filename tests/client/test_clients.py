"""Tests of third-party clients against a running pair.

tokenspeed-trie lives in its own environment (`python -m scripts.clients.install trie`); hey comes
from Debian. The cached tokens reported to these clients add up to the server's counter. `python -m
scripts.clients` runs the larger clients.
"""

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from scripts.clients.install import interpreter
from tasuki.model.named_checkpoints import embedded_model
from tests.harness.daemons import Node
from tests.harness.metrics_text import scraped
from tests.harness.programs import output_of, program
from tests.harness.running_nodes import HTTP, node_pair

ROOT = Path(__file__).parents[2]
WORKLOAD = {
    "num_turns": 4,
    "input_prompt_length": 2000,
    "assistant_response_length": [12] * 4,
    "tool_call_output_length": [150, 40, 200, 90],
    "tool_call_latency": [0, 0.1, 0, 0],
    "final_assistant_response_length": 12,
}


@pytest.fixture(scope="module")
def decode() -> Iterator[Node]:
    with node_pair(decode=HTTP, arena_mib=256) as (_, node):
        yield node


def usable_tokens(node: Node) -> int:
    """Return the node's counter of usable tokens, as reported to its requests, from /metrics."""
    return int(scraped(node.http_address)["tasuki_request_usable_tokens_total"])


def run_trie(node: Node, python: Path, workload: Path) -> dict[str, object]:
    command = [python, ROOT / "scripts" / "clients" / "trie_run.py"]
    url, model = f"http://{node.http_address}/v1", embedded_model()
    told = output_of(
        [*command, url, "embedded", model, workload, "1"],
        env={"HF_HUB_OFFLINE": "1", "PATH": "/usr/bin", "HOME": str(workload.parent)},
    )
    counted: dict[str, object] = json.loads(told.splitlines()[-1])
    return counted


def test_trie_fails_nothing_hits_and_counts_what_the_server_counts(
    decode: Node, tmp_path: Path
) -> None:
    python = interpreter("trie")
    if python is None:
        pytest.skip("tokenspeed-trie is not installed: python -m scripts.clients.install trie")
    workload = tmp_path / "workload.jsonl"
    workload.write_text(json.dumps(WORKLOAD) + "\n", encoding="utf-8")
    before = usable_tokens(decode)
    with ThreadPoolExecutor() as pool:
        runs = [*pool.map(lambda _: run_trie(decode, python, workload), range(2))]
    assert all(run["failed"] == 0 and run["completed"] for run in runs), runs
    traces = [trace for run in runs for trace in run["traces"]]  # type: ignore[attr-defined]
    for trace in traces:
        assert trace["cached_tokens"] / trace["eligible_prompt_tokens"] >= 0.95, trace
    assert usable_tokens(decode) - before == sum(trace["cached_tokens"] for trace in traces)


def test_hey_gets_nothing_but_answers(decode: Node) -> None:
    hey = program("hey", "install Debian's hey")
    body = {"prompt": [7, 8, 9] * 40, "max_tokens": 4, "ignore_eos": True, "temperature": 0}
    told = output_of(
        [
            *(hey, "-n", "64", "-c", "8", "-t", "120", "-m", "POST", "-T", "application/json"),
            *("-d", json.dumps(body), f"http://{decode.http_address}/v1/completions"),
        ]
    )
    statuses = re.findall(r"\[(\d+)\]\s+(\d+) responses", told)
    assert statuses == [("200", "64")], told
    assert "Error distribution" not in told, told
    decode.assert_at_rest()
