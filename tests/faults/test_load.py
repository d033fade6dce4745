"""Many streams at once, readers that do not read, bursts of aborts, nodes that come and go.

The long run is `python -m scripts.chaos load`: 256 streams for five minutes.
"""

import asyncio
import json
import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from scripts.chaos.faults import Fault
from scripts.chaos.load import LoadSettings, load
from scripts.chaos.load import nodes as nodes_of
from scripts.chaos.world import World
from tests.harness.daemons import asked, random_prompt
from tests.harness.http_calls import JSON, connect
from tests.harness.running_nodes import require_nixl
from tests.harness.waiting import processor_seconds, until

STORM = 500
ENDLESS = 5000


@pytest.fixture(scope="module")
def nodes() -> Iterator[World]:
    require_nixl()
    with nodes_of(LoadSettings(arena_mib=256)) as running:
        yield running


def assert_answers(nodes: World) -> None:
    assert len(asked(nodes.decode, random_prompt(48, 3), b"", 24).result().token_ids) == 24


@pytest.mark.slow
def test_sixty_four_streams_at_once_lose_no_turn(nodes: World) -> None:
    # There are more turns than users, so some second turn finds its first.
    settings = LoadSettings(seconds=1.0, seed=1, streams=64, turns=2 * 64)
    tally = asyncio.run(load(nodes, settings))
    assert tally.good and tally["asked again"] == 0, str(tally)
    assert tally["turns"] >= 2 * 64 and tally["cached tokens"] > 0, str(tally)
    nodes.assert_at_rest()


def test_a_reader_that_does_not_read_stalls_nobody(nodes: World) -> None:
    body = {"prompt": [1, 2, 3], "max_tokens": 4000, "ignore_eos": True, "stream": True}
    with closing(connect(nodes.decode.http_address)) as deaf:
        deaf.connect()
        # A few chunks fill this receive buffer.
        deaf.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        deaf.request("POST", "/v1/completions", json.dumps(body), JSON)
        stream = asked(nodes.decode, random_prompt(32, 5), b"", ENDLESS)
        until(lambda: sum(nodes.decode.stats().requests.values()) == 2, nodes.decode.story)
        # A server that waited for that reader would wait for ever.
        for _ in range(3):
            assert_answers(nodes)
        stream.cancel()
    nodes.assert_at_rest()


def test_five_hundred_aborts_at_once_cost_less_than_what_they_end(nodes: World) -> None:
    """The cost is the processor time of both nodes, independent of other processes."""

    def spent() -> float:
        return sum(processor_seconds(node.pid) for node in (nodes.prefill, nodes.decode))

    before = spent()
    prompt = random_prompt(100, 1)
    streams = [asked(nodes.decode, prompt, b"storm %d" % n, ENDLESS) for n in range(STORM)]
    until(lambda: sum(nodes.decode.stats().requests.values()) == STORM, nodes.decode.story)
    begun = spent()
    for stream in streams:
        stream.cancel()
    nodes.assert_at_rest()
    assert spent() - begun < begun - before
    assert_answers(nodes)


@pytest.mark.slow
def test_nodes_that_are_killed_or_restarted_under_load_lose_no_turn(nodes: World) -> None:
    befall = (Fault.KILL_PREFILL, Fault.STOP_PREFILL, Fault.STOP_DECODE, Fault.KILL_DECODE)
    tally = asyncio.run(load(nodes, LoadSettings(seconds=3.0, seed=1, streams=16), befall))
    assert tally.good, str(tally)
    assert len(tally.memory) == 6, "two nodes, and four more lives"
    nodes.assert_at_rest()
