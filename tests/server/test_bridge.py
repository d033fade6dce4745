"""Tests of services on one event loop with their gRPC server on another. Calls stay the same, and a
stopped loop delays only its own callers."""

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tasuki.engine import messages as m
from tasuki.proto import handover_pb2, handover_pb2_grpc
from tasuki.proto import inference_pb2 as pb
from tasuki.server.auth.callers import ApiKeys, Caller
from tasuki.server.config import ServerConfig
from tasuki.server.engine_client import EngineClient
from tasuki.server.grpc.server import Bridge, Server, Service, start_server
from tasuki.server.grpc.services import grpc_services
from tasuki.utils.loops import LoopThread, run_on
from tests.harness.api_keys import metadata
from tests.harness.grpc_calls import GrpcCalls
from tests.harness.grpc_fixtures import TOKENS_ONLY, ScriptedEngine, ScriptedObserver
from tests.harness.refusals import refusal
from tests.harness.waiting import HANG_SECONDS, until

KEY = "secret"


class Guest(handover_pb2_grpc.HandoverServicer):
    """A service that stays on the server's loop."""

    def __init__(self) -> None:
        self.threads: set[int] = set()

    async def Abort(
        self,
        request: handover_pb2.AbortRequest,
        context: "grpc.aio.ServicerContext[handover_pb2.AbortRequest, handover_pb2.AbortResponse]",
    ) -> handover_pb2.AbortResponse:
        self.threads.add(threading.get_ident())
        return handover_pb2.AbortResponse()


@dataclass
class Bridged:
    engine: ScriptedEngine
    front: asyncio.AbstractEventLoop
    host: LoopThread
    guest: Guest
    channel: grpc.Channel
    seen: set[int]
    """Threads of the front's requests, as seen on arrival."""
    lost: list[str]
    failures: list[str]

    @property
    def calls(self) -> GrpcCalls:
        return GrpcCalls(self.channel, metadata(KEY))


@contextmanager
def bridged(engine: ScriptedEngine | None = None, patience: float = 30.0) -> Iterator[Bridged]:
    config = ServerConfig(api_key=KEY)
    engine = engine or ScriptedEngine()
    lost: list[str] = []
    failures: list[str] = []
    front, host = LoopThread("front", lost.append), LoopThread("host", lost.append)
    front.start()
    host.start()
    seen: set[int] = set()

    def begin(request: m.RequestId, request_context: object) -> None:
        seen.add(threading.get_ident())

    observer = ScriptedObserver(beginning=begin)
    limits = config.caller_limits
    client = EngineClient(engine.post, front.loop, observer=observer, limits=limits)
    engine.deliver = lambda message: client.deliver([message])
    engine.start()
    guest = Guest()
    services = [
        *grpc_services(client, TOKENS_ONLY, config),
        Service(
            "tasuki.handover.v1.Handover",
            partial(handover_pb2_grpc.add_HandoverServicer_to_server, guest),
        ),
    ]
    bridge = Bridge(front.loop, ["tasuki.handover.v1.Handover"], failures.append, patience)

    async def start() -> Server:
        return await start_server("127.0.0.1:0", services, config.access, bridge)

    server = asyncio.run(run_on(host.loop, start()))
    channel = grpc.insecure_channel(server.address, options=[("grpc.use_local_subchannel_pool", 1)])
    try:
        yield Bridged(engine, front.loop, host, guest, channel, seen, lost, failures)
        assert not lost
    finally:
        channel.close()
        asyncio.run(server.drain(0))
        engine.stop()
        for loop in (host, front):
            loop.stop(10)
            loop.close()


def test_a_stream_and_a_unary_call_cross_and_run_on_the_fronts_loop() -> None:
    with bridged() as both:
        call = both.calls.generate(5, 6, request_id="r")
        said = list(call)
        assert [said.WhichOneof("event") for said in said[-1:]] == ["finished"]
        tokens = [token for message in said for token in message.chunk.token_ids]
        assert tokens == [7, 8, 9]
        assert dict(call.initial_metadata())["tasuki-request-id"] == "r"
        assert both.calls.stats().pages["total"] == 9
        handover_pb2_grpc.HandoverStub(both.channel).Abort(  # type: ignore[no-untyped-call]
            handover_pb2.AbortRequest(), timeout=HANG_SECONDS
        )
        (front,), (host,) = both.seen, both.guest.threads
        assert front != host


def test_keys_are_checked_on_the_fronts_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check keys on the loop of HTTP's calls, since the counters of calls by caller have no
    lock."""
    checked: set[int] = set()
    plain = ApiKeys.caller

    def caller(self: ApiKeys, authorization: Sequence[str | bytes]) -> Caller | None:
        checked.add(threading.get_ident())
        return plain(self, authorization)

    monkeypatch.setattr(ApiKeys, "caller", caller)
    with bridged() as both:
        list(both.calls.generate(5, 6))
        both.calls.stats()
        stranger = GrpcCalls(both.channel, metadata("guessed"))
        assert refusal(stranger.stats).kind == "invalid_api_key"
        assert checked == both.seen


def test_a_front_that_stands_delays_no_guest_and_no_health() -> None:
    with bridged() as both:
        standing, go_on = threading.Event(), threading.Event()

        def stand() -> None:
            standing.set()
            go_on.wait(HANG_SECONDS)

        both.front.call_soon_threadsafe(stand)
        assert standing.wait(HANG_SECONDS)
        try:
            guest = handover_pb2_grpc.HandoverStub(both.channel)  # type: ignore[no-untyped-call]
            guest.Abort(handover_pb2.AbortRequest(), timeout=HANG_SECONDS)
            health = health_pb2_grpc.HealthStub(both.channel)
            serving = health.Check(health_pb2.HealthCheckRequest(), timeout=HANG_SECONDS)
            assert serving.status == health_pb2.HealthCheckResponse.SERVING
            stats = both.calls.admin.Stats.future(pb.StatsRequest(), **both.calls.options)
            time.sleep(0.1)
            assert not stats.done()
        finally:
            go_on.set()
        # The waiting caller is answered.
        assert stats.result().pages["total"] == 9


def test_a_front_that_never_comes_round_costs_a_typed_error() -> None:
    with bridged(patience=0.2) as both:
        go_on = threading.Event()
        both.front.call_soon_threadsafe(go_on.wait, 30)
        try:
            refused = refusal(both.calls.stats)
        finally:
            go_on.set()
        assert refused.typed == (grpc.StatusCode.UNAVAILABLE, "behind")
        until(lambda: both.failures == ["behind"], lambda: f"counted {both.failures}")
