"""Simultaneous prompts with one new prefix at a decode node go to one prefill node and wait there
for the first. The prefix is computed once in the whole fleet."""

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


def test_what_siblings_share_is_computed_once(prefill: list[Node]) -> None:
    """One call asks a decode node for all prompts, so they reach its engine together even on a busy
    machine."""
    known = ("--prefill", ",".join(node.handover_address for node in prefill))
    shared = random_prompt(SHARED, 300)
    prompts = [[*shared, *random_prompt(OWN, 301 + number)] for number in range(SIBLINGS)]
    asked = {"model": "embedded", "prompt": prompts, "max_tokens": 4, "ignore_eos": True}
    with fleet() as start:
        decode = start("decode", *flags(), *known, *HTTP, "--route", "cost")
        meet(decode)
        before = [computed(node) for node in prefill]
        reply = ask(decode.http_address, "POST", "/v1/completions", asked)
        assert reply.status == 200, reply
        assert len(reply.json["choices"]) == SIBLINGS
        assert computed(decode) == 0
        tokens = [computed(node) - was for node, was in zip(prefill, before, strict=True)]
        assert sorted(tokens) == [0, SHARED + SIBLINGS * OWN]
