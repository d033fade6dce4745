"""A prefix held by one prefill node is copied to another through a decode node, exactly, instead of
being computed again. If the copy fails, the answer is still that of an undisturbed node."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import pytest

from tasuki.client.answer import Answer
from tasuki.client.errors import ClientError
from tasuki.transfer.failpoints import VARIABLE
from tests.harness.daemons import Node, asked, flags, fleet, meet, random_prompt
from tests.harness.forked_daemon import ForkedDaemon
from tests.harness.metrics_text import scraped
from tests.harness.running_nodes import HTTP, needs_nixl
from tests.harness.waiting import until

pytestmark = needs_nixl

SHARED, OWN = 1030, 40
"""Tokens. By cost the second prompt goes to the node of the first: a sent prefix is known in steps
of 512."""
NEW_TOKENS = 8
HELD = SHARED // 64 * 64
BY_COST = ("--route", "cost", "--local-prefill-tokens", "0")


def prompt(number: int) -> tuple[int, ...]:
    return (*random_prompt(SHARED, 7), *random_prompt(OWN, 100 + number))


def answered(node: Node, number: int, salt: bytes = b"") -> Answer:
    return asked(node, prompt(number), salt, NEW_TOKENS).result()


@pytest.fixture(scope="module")
def undisturbed() -> Iterator[list[tuple[int, ...]]]:
    with fleet() as start:
        node = start("serve", *flags())
        yield [answered(node, number).token_ids for number in range(4)]


def start_node(start: Callable[..., Node], command: str, *more: str, failing_at: str = "") -> Node:
    launch = partial(ForkedDaemon, environment={VARIABLE: failing_at})
    return start(command, *flags(), *more, launch=launch)


class World:
    """Two prefill nodes, one with the prefix, and a decode node that holds none of it and is aware
    of this."""

    def __init__(self, start: Callable[..., Node], prefill: str = "", decode: str = "") -> None:
        """Start the nodes. prefill, decode: failpoints of these nodes."""
        nodes = {
            name: start_node(
                start,
                "prefill",
                *("--name", name, "--route", "auto", "--drain-timeout", "600"),
                *HTTP,
                failing_at=prefill,
            )
            for name in "ab"
        }
        targets = ",".join(node.handover_address for node in nodes.values())
        known = (*BY_COST, "--prefill", targets)
        first = start_node(start, "decode", *known)
        meet(first)
        for number in (0, 1):
            answered(first, number)
        (where,) = [name for name, node in nodes.items() if node.stats().tree["checkpoints"]]
        self.holder = nodes.pop(where)
        ((self.other_name, self.other),) = nodes.items()
        self.first = first
        self.decode = start_node(start, "decode", *known, *HTTP, failing_at=decode)
        meet(self.decode)
        states = self.holder.stats().tree["checkpoints"]
        until(lambda: self._known(where) == states, self.decode.stats)

    def _known(self, name: str) -> int:
        nodes = {node.name: node.usable_prefixes for node in self.decode.stats().prefill_nodes}
        return nodes[name]

    def fetched(self) -> dict[str, int]:
        """Return the numbers of fetches by outcome."""
        prefix = "tasuki_states_fetched_total{outcome="
        return {
            name.removeprefix(prefix).removesuffix("}"): int(value)
            for name, value in scraped(self.decode.http_address).items()
            if name.startswith(prefix) and value
        }

    def assert_at_rest(self) -> None:
        for node in (self.holder, self.other, self.decode):
            if node.running:
                node.assert_at_rest()


@contextmanager
def world(**failing: str) -> Iterator[World]:
    """Yield the nodes. Failing ones are killed at the end, without a check of their last lines,
    because these report the failure."""
    with fleet() as start:
        nodes = World(start, **failing)
        yield nodes
        if "prefill" in failing:
            nodes.holder.put_down()
            nodes.other.put_down()
        if "decode" in failing:
            nodes.decode.put_down()


def computed(node: Node) -> int:
    tree = node.stats().tree
    return tree["prompt_tokens"] - tree["usable_tokens"]


def test_a_node_that_takes_no_prompts_gives_what_it_holds(
    undisturbed: list[tuple[int, ...]],
) -> None:
    """Two prompts at once cause only one copy, and no node computes the prefix again."""
    with world() as nodes:
        nodes.holder.drain()
        with ThreadPoolExecutor(2) as pool:
            answers = list(pool.map(lambda number: answered(nodes.decode, number), (2, 3)))
        assert [answer.token_ids for answer in answers] == undisturbed[2:]
        assert nodes.fetched() == {"fetched": 1}
        for usage in (answer.usage for answer in answers):
            assert usage.hit is not None and usage.hit.usable_tokens == HELD
            assert usage.prefilled_on == nodes.other_name
        assert computed(nodes.other) == 2 * (SHARED + OWN - HELD)
        assert computed(nodes.decode) == 0
        nodes.assert_at_rest()


@pytest.mark.slow
@pytest.mark.parametrize("place", ["on_accepted", "on_grant", "after_grant", "on_landed"])
def test_what_breaks_here_is_brought_by_nobody_and_leaves_nothing(
    undisturbed: list[tuple[int, ...]], place: str
) -> None:
    """The hand-over fails as well, so the prompt is computed on the decode node."""
    with world(decode=f"receiver.{place}=raise") as nodes:
        nodes.holder.drain()
        answer = answered(nodes.decode, 2)
        assert answer.token_ids == undisturbed[2] and answer.usage.local_fallback
        assert nodes.fetched() in ({"lost": 1}, {"late": 1})
        nodes.assert_at_rest()


@pytest.mark.slow
@pytest.mark.parametrize("place", ["on_ready", "before_verify", "before_commit"])
def test_what_breaks_here_at_last_leaves_nothing(
    undisturbed: list[tuple[int, ...]], place: str
) -> None:
    with world(decode=f"receiver.{place}=raise") as nodes:
        nodes.holder.drain()
        assert answered(nodes.decode, 2).token_ids == undisturbed[2]
        assert nodes.fetched() == {"lost": 1}
        nodes.assert_at_rest()


@pytest.mark.slow
def test_what_breaks_at_the_holder_is_computed_where_it_is_needed(
    undisturbed: list[tuple[int, ...]],
) -> None:
    with world(prefill="sender.before_done=raise") as nodes:
        nodes.holder.drain()
        assert answered(nodes.decode, 2).token_ids == undisturbed[2]
        assert nodes.fetched() == {"lost": 1}
        nodes.assert_at_rest()


@pytest.mark.slow
@pytest.mark.parametrize("place", ["on_accepted", "after_grant", "before_commit"])
def test_a_decode_node_that_dies_leaves_nothing_pinned_at_the_holder(place: str) -> None:
    with world(decode=f"receiver.{place}=kill") as nodes:
        nodes.holder.drain()
        with pytest.raises(ClientError):
            answered(nodes.decode, 2)
        nodes.decode.put_down()
        nodes.assert_at_rest()
