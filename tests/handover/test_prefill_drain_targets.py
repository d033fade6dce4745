"""A prefill daemon that ends migrates states to another one through decode nodes. Prefixes shared
by several prompts are found there, with the answers of an undisturbed node. The node ends even if a
node on the way fails."""

import os
import signal

import pytest

from tasuki.client.errors import ClientError
from tests.handover.test_fetched_beginnings import (
    HELD,
    OWN,
    SHARED,
    World,
    answered,
    computed,
    undisturbed,
    world,
)
from tests.harness.running_nodes import needs_nixl

pytestmark = needs_nixl

__all__ = ["undisturbed"]


def states_taken(left: World) -> int:
    """Return the number of states taken by the drain target, as the holder logs at its end."""
    lines = [line for line in left.holder.last_words if "prefill nodes took" in line]
    return sum(int(line.split("prefill nodes took ")[1].split()[0]) for line in lines)


def found_at_the_other(nodes: World, number: int, answer: tuple[int, ...]) -> int:
    """Return the usable tokens of a prompt with the prefix at the other node. The asked decode node
    holds none of it."""
    result = answered(nodes.decode, number)
    assert result.token_ids == answer
    assert result.usage.hit is not None
    return result.usage.hit.usable_tokens


def assert_others_at_rest(nodes: World) -> None:
    for node in (nodes.other, nodes.decode, nodes.first):
        if node.running:
            node.assert_at_rest()


@pytest.mark.slow
def test_a_beginning_that_several_share_is_left_to_an_heir(
    undisturbed: list[tuple[int, ...]],
) -> None:
    with world() as nodes:
        assert nodes.holder.stop() == 0
        assert states_taken(nodes) == 1, nodes.holder.last_words
        computed_before = computed(nodes.other)
        assert found_at_the_other(nodes, 2, undisturbed[2]) == HELD
        assert computed(nodes.other) - computed_before == SHARED + OWN - HELD
        assert computed(nodes.decode) == 0
        assert_others_at_rest(nodes)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_an_heir_that_goes_holds_nobody_up(
    undisturbed: list[tuple[int, ...]], number: signal.Signals
) -> None:
    with world() as nodes:
        try:
            nodes.holder.ask_to_stop()
            os.kill(nodes.other.pid, number)
            assert nodes.holder.stop() == 0
        finally:
            if number is signal.SIGSTOP:
                os.kill(nodes.other.pid, signal.SIGCONT)
            else:
                nodes.other.put_down()
        assert found_at_the_other(nodes, 2, undisturbed[2]) in (0, HELD)
        assert_others_at_rest(nodes)


@pytest.mark.slow
@pytest.mark.parametrize(
    "place", ["on_accepted", "on_grant", "after_grant", "before_verify", "before_commit"]
)
@pytest.mark.parametrize("how", ["raise", "kill"])
def test_a_decode_node_that_fails_on_the_way_holds_nobody_up(
    undisturbed: list[tuple[int, ...]], place: str, how: str
) -> None:
    """The other node continues with the remaining states; a kill leaves nothing pinned."""
    with world(decode=f"receiver.{place}={how}") as nodes:
        assert nodes.holder.stop() == 0
        assert not any("Traceback" in line for line in nodes.holder.last_words)
        try:
            answer = answered(nodes.decode, 2)
        except ClientError:
            assert how == "kill"
        else:
            assert answer.token_ids == undisturbed[2]
        for node in (nodes.other, nodes.first):
            node.assert_at_rest()


@pytest.mark.slow
def test_without_decode_nodes_its_end_waits_for_nobody() -> None:
    with world() as nodes:
        for node in (nodes.decode, nodes.first):
            node.kill()
            node.put_down()
        assert nodes.holder.stop() == 0
        assert states_taken(nodes) == 0
