"""The hand-over has its own event loop and server: clients of a front cannot delay heartbeats and
transfers."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tasuki.cli.launcher import Daemon
from tasuki.proto import handover_pb2, handover_pb2_grpc
from tasuki.proto import inference_pb2 as pb
from tasuki.proto import inference_pb2_grpc as pb_grpc
from tests.harness.daemons import COUNTED_CHUNKS, Node, Question, asked, flags, fleet, questions
from tests.harness.forked_daemon import ForkedDaemon
from tests.harness.running_nodes import needs_nixl
from tests.harness.standing_daemon import SECONDS, StandingDaemon, be_busy_now, sleep_now
from tests.harness.waiting import HANG_SECONDS, until

pytestmark = needs_nixl

CONNECTED = pb.PREFILL_NODE_STATE_CONNECTED
LONG, SHORT = range(2)
ROUNDS = 4


@pytest.fixture(scope="module")
def told() -> tuple[Question, ...]:
    return questions((1500, 600))


@contextmanager
def pair(
    launch: Callable[..., Daemon] = ForkedDaemon, *prefill_flags: str
) -> Iterator[tuple[Node, Node]]:
    """Yield a prefill node, with one prompt at a time in small chunks, and a decode node."""
    small = ("--prefill-chunk-tokens", "64")
    with fleet(launch) as start:
        slow = ("--max-batch", "1", *COUNTED_CHUNKS, *prefill_flags)
        prefill = start("prefill", *flags(), *small, *slow)
        decode = start("decode", *flags(), *small, "--prefill", prefill.handover_address)
        until(lambda: state(decode) == CONNECTED, "not connected")
        yield prefill, decode
        for node in (prefill, decode):
            node.assert_at_rest()


def state(decode: Node) -> int:
    (node,) = decode.stats().prefill_nodes
    return node.state


def links_lost(decode: Node) -> int:
    return sum("is lost" in line for line in decode.last_words)


@pytest.fixture(scope="module")
def standing() -> Iterator[tuple[Node, Node]]:
    with pair(StandingDaemon) as nodes:
        yield nodes


@pytest.mark.parametrize(("role", "stand"), [("decode", sleep_now), ("prefill", be_busy_now)])
def test_a_front_that_stands_for_seconds_loses_no_link_and_no_hand_over(
    standing: tuple[Node, Node],
    told: tuple[Question, ...],
    role: str,
    stand: Callable[[int], None],
) -> None:
    """The front is blocked three times as long as the heartbeat timeout. A busy machine may starve
    a whole process as long and so lose the link. One round without a loss is enough: with a loop
    shared with callers, every round would lose it."""
    prefill, decode = standing
    pid = {"decode": decode, "prefill": prefill}[role].pid
    assert any(
        nothing_was_lost(decode, told, f"{role} {number}", lambda: stand(pid))
        for number in range(ROUNDS)
    ), decode.last_words


def nothing_was_lost(
    decode: Node, told: tuple[Question, ...], name: str, stand: Callable[[], None]
) -> bool:
    """Run one round: hand three prompts over while a front is blocked. Return whether nothing was
    lost."""
    links, before = links_lost(decode), decode.arrived()
    numbers = (LONG, SHORT, SHORT)
    streams = [
        asked(decode, told[number].prompt, f"{name} {salt}".encode())
        for salt, number in enumerate(numbers)
    ]
    until(lambda: decode.arrived() > before, decode.story)
    stand()
    usages = []
    for number, stream in zip(numbers, streams, strict=True):
        answer = stream.result()
        assert answer.token_ids == told[number].tokens
        usages.append(answer.usage)
    here = [usage for usage in usages if usage.local_fallback or usage.prefilled_on != "prefill"]
    return not here and links_lost(decode) == links


def test_a_node_tells_its_peer_that_its_callers_wait(standing: tuple[Node, Node]) -> None:
    """The process is alive, and its peer can see that it does not serve its callers."""
    prefill, decode = standing
    until(lambda: decode.stats().prefill_nodes[0].HasField("engine_seconds"), decode.story)
    sleep_now(prefill.pid)
    until(lambda: decode.stats().prefill_nodes[0].front_seconds > SECONDS / 6, decode.story)
    until(lambda: decode.stats().prefill_nodes[0].front_seconds < SECONDS / 6, decode.story)


def test_a_frozen_decode_node_goes_on_where_it_was(told: tuple[Question, ...]) -> None:
    """It is frozen longer than a lease. Running hand-overs are prefilled locally, and the link is
    connected again."""
    with pair() as (_, decode):
        before = decode.arrived()
        streams = [asked(decode, told[n].prompt, str(n).encode()) for n in (LONG, SHORT)]
        until(lambda: decode.arrived() > before, decode.story)
        os.kill(decode.pid, signal.SIGSTOP)
        time.sleep(3.0)
        os.kill(decode.pid, signal.SIGCONT)
        for number, stream in zip((LONG, SHORT), streams, strict=True):
            assert stream.result().token_ids == told[number].tokens
        until(lambda: state(decode) == CONNECTED, "not connected again")
        again = asked(decode, told[SHORT].prompt, b"again").result()
        assert again.token_ids == told[SHORT].tokens and again.usage.prefilled_on == "prefill"


def test_the_hand_over_has_an_address_of_its_own_where_it_is_given_one(
    told: tuple[Question, ...],
) -> None:
    with pair(ForkedDaemon, "--handover-bind", "127.0.0.1:0") as (prefill, decode):
        assert prefill.handover_address != prefill.address
        answer = asked(decode, told[SHORT].prompt, b"").result()
        assert answer.token_ids == told[SHORT].tokens
        assert answer.usage.prefilled_on == "prefill"
        assert refusal(prefill.address, connect) is grpc.StatusCode.UNIMPLEMENTED
        assert refusal(prefill.handover_address, stats) is grpc.StatusCode.UNIMPLEMENTED
        for address in (prefill.address, prefill.handover_address):
            with grpc.insecure_channel(address) as channel:
                health = health_pb2_grpc.HealthStub(channel)
                reply = health.Check(health_pb2.HealthCheckRequest(), timeout=HANG_SECONDS)
            assert reply.status == health_pb2.HealthCheckResponse.SERVING


def connect(channel: grpc.Channel) -> None:
    stub = handover_pb2_grpc.HandoverStub(channel)  # type: ignore[no-untyped-call]
    stub.Connect(handover_pb2.ConnectRequest(), timeout=HANG_SECONDS)


def stats(channel: grpc.Channel) -> None:
    pb_grpc.CacheAdminStub(channel).Stats(pb.StatsRequest(), timeout=HANG_SECONDS)


def refusal(address: str, ask: Callable[[grpc.Channel], None]) -> grpc.StatusCode:
    with grpc.insecure_channel(address) as channel, pytest.raises(grpc.RpcError) as refused:
        ask(channel)
    code: grpc.StatusCode = refused.value.code()
    return code
