"""Tests of the examples: they run as their first lines say and show the effect they claim."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.daemons import Node
from tests.harness.programs import output_of
from tests.harness.running_nodes import HTTP, fused_node

EXAMPLES = Path(__file__).parents[2] / "examples"
PAIR = re.compile(r"(\d+) prompt tokens, (\d+) cached")


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with fused_node(*HTTP) as running:
        yield running


def said(name: str, *words: str) -> str:
    return output_of([sys.executable, EXAMPLES / name, *words])


def counted(text: str) -> list[tuple[int, int]]:
    return [(int(prompt), int(cached)) for prompt, cached in PAIR.findall(text)]


def test_the_tool_agent_finds_its_prefix_again(node: Node) -> None:
    rounds = counted(said("tool_agent.py", f"http://{node.http_address}/v1"))
    assert len(rounds) >= 2
    (prompt, cached) = rounds[len(rounds) // 2]
    assert cached >= max(64, prompt - 64), "the second time only the end is computed"


def test_forked_agents_share_what_came_before(node: Node) -> None:
    parent, *children = counted(said("forked_agents.py", node.address))
    assert len(children) == 3 and parent[1] < parent[0]
    for prompt, cached in children:
        assert prompt > parent[0] and cached >= parent[0]


def test_the_benchmark_loop_tells_a_row_a_turn(node: Node) -> None:
    rows = said("benchmark_loop.py", node.address, "2", "3").splitlines()[1:]
    shares = [float(row.split()[-1].rstrip("%")) for row in rows]
    assert len(shares) == 3 and shares[0] == 0 and min(shares[1:]) > 80
