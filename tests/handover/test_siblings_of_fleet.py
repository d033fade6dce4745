"""Prompts of one new beginning that come at once to a decode node go to one prefill node, and there
wait for the first: what they share is computed once in the whole fleet."""

from collections.abc import Iterator

import pytest

from tasuki.client.prompt import Prompt
from tests.harness.daemons import Node, flags, fleet, meet, random_prompt
from tests.harness.running_nodes import CHUNKS, needs_nixl

pytestmark = needs_nixl

SHARED, OWN, SIBLINGS = 1280, 40, 6


@pytest.fixture(scope="module")
def prefill() -> Iterator[list[Node]]:
    with fleet() as start:
        yield [start("prefill", *flags(), *CHUNKS, "--name", name) for name in ("p1", "p2")]


def computed(prefill: list[Node], route: str, seed: int) -> tuple[int, set[str]]:
    """Tokens of the siblings that were computed in all, and where."""
    known = ("--prefill", ",".join(node.handover_address for node in prefill))
    with fleet() as start:
        decode = start("decode", *flags(), *known, "--route", route)
        meet(decode)
        shared = random_prompt(SHARED, seed)
        streams = [
            decode.client.generate(
                Prompt(token_ids=(*shared, *random_prompt(OWN, seed + 1 + number))),
                max_new_tokens=4,
                ignore_eos=True,
            )
            for number in range(SIBLINGS)
        ]
        ended = [stream.result().usage for stream in streams]
    assert not any(usage.local_fallback for usage in ended)
    hits = [usage.hit for usage in ended if usage.hit is not None]
    assert len(hits) == SIBLINGS
    tokens = sum(hit.prompt_tokens - hit.usable_tokens for hit in hits)
    return tokens, {usage.prefilled_on for usage in ended}


def test_by_cost_what_siblings_share_is_computed_once(prefill: list[Node]) -> None:
    tokens, places = computed(prefill, "cost", 300)
    assert len(places) == 1
    assert tokens == SHARED + SIBLINGS * OWN


def test_by_fewest_rooms_each_node_computes_it(prefill: list[Node]) -> None:
    """So the test above can fail."""
    tokens, places = computed(prefill, "fewest-rooms", 400)
    assert places == {"p1", "p2"}
    assert tokens == 2 * SHARED + SIBLINGS * OWN
