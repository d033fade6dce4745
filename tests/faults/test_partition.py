"""The control channel between real daemons is cut, half-open or slow: the answer is slower and has
the same tokens. Granted ids are not reused before their writer is fenced.

The bytes of a hand-over bypass the proxy. A sender cut off from control can still write; the lease
is there for this.
"""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tasuki.proto import inference_pb2 as pb
from tests.harness.daemons import Node, Pair, Question, questions
from tests.harness.pair_moments import (
    handed_over,
    in_transfer,
)
from tests.harness.running_nodes import needs_nixl
from tests.harness.tcp_proxy import TcpProxy
from tests.harness.waiting import until

pytestmark = needs_nixl

VERY_LONG, LONG, MIDDLE, SHORT = range(4)
"""Indices of the questions. Only a part of the very long prompt is computed when a lease
expires."""
LOST, CONNECTED = pb.PREFILL_NODE_STATE_LOST, pb.PREFILL_NODE_STATE_CONNECTED
LEASE = 2.0


@pytest.fixture(scope="module")
def told() -> tuple[Question, ...]:
    return questions((6000, 2000, 1000, 600))


@pytest.fixture(scope="module")
def link(told: tuple[Question, ...]) -> Iterator[tuple[Pair, TcpProxy]]:
    proxies: list[TcpProxy] = []

    def between(address: str) -> str:
        proxies.append(TcpProxy(address))
        return proxies[0].address

    # No end but its own: a busy machine may take long to be asked a storm of requests.
    pair = Pair(told, between, more=("--queue-timeout", "600"))
    yield pair, proxies[0]
    pair.stop()
    proxies[0].close()


@pytest.fixture
def proxy(link: tuple[Pair, TcpProxy]) -> TcpProxy:
    return link[1]


@pytest.fixture
def pair(link: tuple[Pair, TcpProxy]) -> Iterator[Pair]:
    """Yield the pair, connected and at rest, before and after."""
    standing, proxy = link
    proxy.heal()
    standing.fix()
    yield standing
    proxy.heal()
    standing.assert_at_rest()


def notifications(node: Node) -> int:
    """Return the number of layer chunks written to this node, used or not."""
    return sum(node.stats().windows.values())


def test_a_cut_in_mid_transfer_costs_time_only(pair: Pair, proxy: TcpProxy) -> None:
    stream = in_transfer(pair, LONG)
    proxy.cut()
    until(lambda: pair.prefill_state() == LOST, "the decode node has not noticed")
    assert pair.right(LONG, stream).usage.local_fallback
    pair.assert_at_rest()
    proxy.heal()
    until(lambda: pair.prefill_state() == CONNECTED, "not connected again")
    handed_over(pair, SHORT)


def test_a_half_open_link_is_noticed_and_fenced_by_the_lease(pair: Pair, proxy: TcpProxy) -> None:
    leased = pair.prefill.stats().tree["leased_requests"]
    before = pair.prefill.stats().pages["tree"]
    stream = in_transfer(pair, VERY_LONG)
    proxy.black_hole()
    begun = time.monotonic()
    until(lambda: pair.prefill_state() == LOST, "the decode node has not noticed")
    # The prefill node is alive and writes, and it cannot be asked for a drain: only its lease
    # counts.
    until(lambda: pair.decode.stats().pages["quarantined"] > 0, pair.decode.story)
    until(pair.prefill.at_rest, pair.prefill.story)
    written = notifications(pair.decode)
    # It stopped before the prompt's end.
    assert pair.prefill.stats().pages["tree"] - before < pair.pages(VERY_LONG)
    until(lambda: pair.decode.stats().pages["quarantined"] == 0, pair.decode.story)
    # The last heartbeat was answered shortly before the partition.
    assert time.monotonic() - begun > LEASE / 2
    assert pair.right(VERY_LONG, stream).usage.local_fallback
    pair.decode.assert_at_rest()
    assert notifications(pair.decode) == written

    # Messages lost in the partition arrive now, for an ended transfer.
    proxy.heal()
    until(lambda: pair.prefill_state() == CONNECTED, "not connected again")
    time.sleep(0.5)
    pair.assert_at_rest()
    assert notifications(pair.decode) == written
    assert pair.prefill.stats().tree["leased_requests"] == leased + 1
    handed_over(pair, SHORT)


def test_a_slow_link_is_not_a_dead_one(pair: Pair, proxy: TcpProxy) -> None:
    proxy.delay(0.2)
    with ThreadPoolExecutor(3) as pool:
        # One is computed while the others queue: queued is not dead.
        numbers = (MIDDLE, SHORT, SHORT)
        streams = [pair.ask(number) for number in numbers]
        asked = [pool.submit(pair.right, n, s) for n, s in zip(numbers, streams, strict=True)]
        usages = [answer.result().usage for answer in asked]
    assert [usage.prefilled_on for usage in usages] == ["prefill"] * 3
    assert not any(usage.local_fallback for usage in usages)
    assert pair.prefill_state() == CONNECTED
