"""Nodes of two ranks: the effect on requests and processes when one rank dies or freezes."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tasuki.client.errors import ClientError
from tests.harness.daemons import Node, asked, flags, random_prompt
from tests.harness.processes import ended, engine_of, followers_of
from tests.harness.running_nodes import refused_start
from tests.harness.waiting import HANG_SECONDS, until

RANKS = ("--tensor-parallel", "2")
ENDLESS = 2000


@contextmanager
def node_of_ranks(*more: str) -> Iterator[tuple[Node, int, int]]:
    """Yield (the node, its engine's pid, the follower's pid); no process outlives the block."""
    node = Node("serve", *flags(), *RANKS, *more).wait_ready()
    engine = engine_of(node.pid)
    (follower,) = followers_of(engine)
    try:
        yield node, engine, follower
        until(lambda: ended(engine) and ended(follower), "a rank outlives its node")
    finally:
        node.put_down()


def ends_in_order(node: Node, why: str, break_it: Callable[[], object]) -> float:
    """Assert that every request ends with a typed error, and the node with status 1. Return the
    seconds until the last request ended."""
    streams = [asked(node, random_prompt(80, seed), b"", ENDLESS) for seed in range(3)]
    for stream in streams:
        next(iter(stream))
    break_it()
    begun = time.monotonic()
    for stream in streams:
        with pytest.raises(ClientError, match=why) as refused:
            stream.result()
        assert refused.value.kind == "internal"
    taken = time.monotonic() - begun
    until(lambda: node.exit_status is not None, "the node goes on without a rank")
    assert node.stop() == 1
    return taken


@pytest.mark.parametrize(
    ("rank", "number", "why", "last_word"),
    [
        (1, signal.SIGKILL, "was ended by SIGKILL; restart this node", "was ended by SIGKILL"),
        pytest.param(0, signal.SIGKILL, "SIGKILL; restart", "", marks=pytest.mark.slow),
        pytest.param(
            *(1, signal.SIGSTOP, r"said nothing for 2 s \(--rank-timeout\); restart this node", ""),
            marks=pytest.mark.slow,
        ),
        # Its followers see that it reads nothing; no other process would.
        pytest.param(
            *(0, signal.SIGSTOP, "SIGKILL; restart", "has read nothing for 2 s (--rank-timeout)"),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["follower killed", "leader killed", "follower stands still", "leader stands still"],
)
def test_a_rank_that_is_lost_ends_its_node_and_every_request_typed(
    rank: int, number: int, why: str, last_word: str
) -> None:
    more = ("--rank-timeout", "2") if number == signal.SIGSTOP else ()
    with node_of_ranks(*more) as (node, engine, follower):
        if rank:
            why = rf"rank 1 \(process {follower}\) .*{why}"
        process = follower if rank else engine
        taken = ends_in_order(node, why, lambda: os.kill(process, number))
        assert taken < HANG_SECONDS
        assert any(last_word in line for line in node.last_words)


@pytest.mark.slow
def test_a_follower_that_is_killed_while_nothing_runs_ends_its_node() -> None:
    with node_of_ranks() as (node, _, follower):
        os.kill(follower, signal.SIGKILL)
        until(lambda: node.exit_status is not None, "the node goes on without a rank")
        assert node.stop() == 1


@pytest.mark.slow
def test_a_front_that_is_killed_leaves_no_rank() -> None:
    with node_of_ranks() as (node, _, _):
        node.kill()


@pytest.mark.slow
def test_a_node_of_ranks_drains_and_leaves_nothing() -> None:
    with node_of_ranks() as (node, _, _):
        stream = asked(node, random_prompt(80, 1), b"", 40)
        next(iter(stream))
        node.ask_to_stop()
        assert len(stream.result().token_ids) == 40
        assert node.stop() == 0


def test_what_keeps_ranks_from_starting_is_one_line() -> None:
    three = refused_start("serve", *flags(), "--tensor-parallel", "3")
    assert "it has 2 query heads; give --tensor-parallel one of 1, 2" in three[-1]
    thread = refused_start("serve", *flags(), *RANKS, "--engine-process", "thread")
    assert "leave engine_process out" in thread[-1]
