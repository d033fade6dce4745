"""Prompts of one new beginning that come at once to a decode node go to one prefill node, and there
wait for the first: what they share is computed once in the whole fleet."""

from collections.abc import Iterator

import pytest

from tests.harness.daemons import Node, flags, fleet, meet, random_prompt
from tests.harness.http_calls import ask
from tests.harness.running_nodes import CHUNKS, HTTP, needs_nixl

pytestmark = needs_nixl

SHARED, OWN, SIBLINGS = 1280, 40, 6


@pytest.fixture(scope="module")
def prefill() -> Iterator[list[Node]]:
    with fleet() as start:
        yield [start("prefill", *flags(), *CHUNKS) for _ in range(2)]


def computed(node: Node) -> int:
    tree = node.stats().tree
    return tree["prompt_tokens"] - tree["usable_tokens"]


def computed_of_siblings(prefill: list[Node], route: str, seed: int) -> list[int]:
    """Tokens, by prefill node, of prompts that a decode node is asked in one call, so that they
    come to its engine together however busy this machine is."""
    known = ("--prefill", ",".join(node.handover_address for node in prefill))
    shared = random_prompt(SHARED, seed)
    prompts = [[*shared, *random_prompt(OWN, seed + 1 + number)] for number in range(SIBLINGS)]
    asked = {"model": "embedded", "prompt": prompts, "max_tokens": 4, "ignore_eos": True}
    with fleet() as start:
        decode = start("decode", *flags(), *known, *HTTP, "--route", route)
        meet(decode)
        before = [computed(node) for node in prefill]
        reply = ask(decode.http_address, "POST", "/v1/completions", asked)
        assert reply.status == 200, reply
        assert len(reply.json["choices"]) == SIBLINGS
        assert computed(decode) == 0
        return sorted(computed(node) - was for node, was in zip(prefill, before, strict=True))


def test_by_cost_what_siblings_share_is_computed_once(prefill: list[Node]) -> None:
    assert computed_of_siblings(prefill, "cost", 300) == [0, SHARED + SIBLINGS * OWN]


def test_by_fewest_rooms_each_node_computes_it(prefill: list[Node]) -> None:
    """So the test above can fail."""
    each = SHARED + SIBLINGS // 2 * OWN
    assert computed_of_siblings(prefill, "fewest-rooms", 400) == [each, each]
