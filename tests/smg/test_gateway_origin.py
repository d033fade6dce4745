"""Whose call a gateway's is: the key that it bears, the trace that it belongs to, and its id."""

import asyncio
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import grpc
import pytest
from tasuki.engine import messages as m
from tasuki.prefill_node.gateway_rooms import PATIENCE_SECONDS
from tasuki.server.auth.request_context import RequestContext
from tasuki.server.config import ServerConfig
from tasuki.server.engine_client import EngineClient
from tasuki.server.grpc.server import Service, start_server
from tasuki.server.smg.gateway_model import GatewayModel

from tests.harness.daemons import Node, flags
from tests.harness.front_fixtures import ScriptedEngine
from tests.harness.otlp_collector import Collector, SeenSpan, running_collector
from tests.harness.smg_process import Smg, require_protocol, require_smg, smg
from tests.harness.waiting import until

require_protocol()

from smg_grpc_proto.generated import tokenspeed_scheduler_pb2 as pb  # noqa: E402
from smg_grpc_proto.generated import tokenspeed_scheduler_pb2_grpc as pb_grpc  # noqa: E402
from tasuki.server.smg.service import SERVICE, GatewayService  # noqa: E402

MODEL = GatewayModel(Path("model"), "model", "qwen3_5_text", (), "float32", 320, 100, (2,))
CALLER = "00f067aa0ba902b7"
TRACE = "4bf92f3577b34da6a3ce929d0e0e0001"
TRACEPARENT = f"00-{TRACE}-{CALLER}-01"


@contextmanager
def gateway_front(
    config: ServerConfig,
) -> Iterator[tuple[str, list[tuple[m.RequestId, RequestContext]]]]:
    """The gateway's service over a scripted engine: its address, and who began what."""
    began: list[tuple[m.RequestId, RequestContext]] = []
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    engine = ScriptedEngine()
    client = EngineClient(
        engine.post,
        loop,
        limits=config.limits,
        begin=lambda request, request_context: began.append((request, request_context)),
    )
    engine.deliver = lambda message: client.deliver([message])
    engine.start()
    servicer = GatewayService(client, client, MODEL, None, 8, config.access.keys)
    add = partial(pb_grpc.add_TokenSpeedSchedulerServicer_to_server, servicer)
    services = [Service(SERVICE, add)]
    server = asyncio.run_coroutine_threadsafe(
        start_server("127.0.0.1:0", services, config.access), loop
    ).result(10)
    try:
        yield server.address, began
    finally:
        asyncio.run_coroutine_threadsafe(server.drain(0), loop).result(10)
        engine.stop()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_each_key_has_its_own_minute_and_its_call_a_trace_and_an_id(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(
        "ann ann-has-this-key gateway\nben ben-has-that-key gateway\n", encoding="utf-8"
    )
    config = ServerConfig(gateway=True, requests_per_minute=1, api_keys=str(keys))
    prompt = pb.TokenizedInput(input_ids=[5, 6, 7])
    with (
        gateway_front(config) as (address, began),
        grpc.insecure_channel(address) as channel,
    ):
        stub = pb_grpc.TokenSpeedSchedulerStub(channel)

        def ask(key: str, request_id: str) -> dict[str, str]:
            """The headers of an answer that has come whole."""
            metadata = (("authorization", f"Bearer {key}"), ("traceparent", TRACEPARENT))
            call = stub.Generate(
                pb.GenerateRequest(request_id=request_id, tokenized=prompt), metadata=metadata
            )
            assert [message.WhichOneof("response") for message in call] == ["complete"]
            return dict(call.initial_metadata())

        assert ask("ann-has-this-key", "a-1")["tasuki-request-id"] == "a-1"
        with pytest.raises(grpc.RpcError) as refused:
            ask("ann-has-this-key", "a-2")
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "ann has used its 1 requests a minute" in refused.value.details()
        assert dict(refused.value.trailing_metadata())["tasuki-error-kind"] == "rate_limited"
        given = ask("ben-has-that-key", "")["tasuki-request-id"]
        assert given, "a call without an id is told the one that the log has"
    assert [
        (name, request_context.caller.name, request_context.traceparent)
        for name, request_context in began
    ] == [
        ("a-1", "ann", TRACEPARENT),
        (given, "ben", TRACEPARENT),
    ]


@dataclass(frozen=True)
class Fronted:
    """A pair behind the real gateway, of which the decode node answers one request a minute."""

    gateway: Smg
    prefill: Node
    decode: Node
    collector: Collector

    def spans(self, name: str) -> list[SeenSpan]:
        return [span for span in self.collector.spans(TRACE) if span.name == name]

    def ask(self, streams: bool = False) -> str:
        """The id of the answer. Raises HTTPError."""
        body = {
            "model": "embedded",
            "messages": [{"role": "user", "content": "Tell me a story about the runner. " * 20}],
            "max_tokens": 4,
            "rid": "asked",
            "stream": streams,
        }
        request = urllib.request.Request(
            f"{self.gateway.base_url}/v1/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json", "traceparent": TRACEPARENT},
        )
        with urllib.request.urlopen(request, timeout=60) as reply:
            told: str = json.load(reply)["id"]
        return told


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fronted]:
    require_smg()
    with running_collector() as collector, pytest.MonkeyPatch.context() as patch:
        # The SDK's own setting: it sends every five seconds otherwise.
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "200")
        shared = [*flags(), "--gateway", "--otlp-endpoint", collector.url]
        limited = ("--requests-per-minute", "1")
        prefill = Node("prefill", *shared).wait_ready()
        decode = Node("decode", *shared, *limited, "--prefill", prefill.address).wait_ready()
        try:
            with smg(
                tmp_path_factory.mktemp("smg"),
                2,
                "--pd-disaggregation",
                *("--prefill", f"grpc://{prefill.address}", prefill.address.rpartition(":")[2]),
                *("--decode", f"grpc://{decode.address}"),
                *("--enable-trace", "--otlp-traces-endpoint", collector.url.partition("//")[2]),
            ) as gateway:
                yield Fronted(gateway, prefill, decode, collector)
        finally:
            assert [decode.stop(), prefill.stop()] == [0, 0]


def test_a_trace_goes_through_the_gateway_to_both_nodes_and_a_limit_to_its_caller(
    pair: Fronted,
) -> None:
    told = pair.ask()
    assert told.startswith("asked")
    until(
        lambda: bool(pair.spans("request") and pair.spans("room")),
        lambda: pair.collector.spans(TRACE),
    )
    (asked,), (room,) = pair.spans("request"), pair.spans("room")
    assert asked.node == "decode" and room.node == "prefill"
    assert room.parent == asked.id
    # The gateway's own span stands between the caller's and the node's.
    assert asked.parent != CALLER
    for span in (asked, room):
        assert span.attributes["tasuki.request_id"] == told
    for node in (pair.decode, pair.prefill):
        assert any(told in line for line in node.last_words), node.last_words
    # The decode node refuses before its stream begins: the prefill node waits for nobody.
    for streams in (False, True):
        begun = time.monotonic()
        with pytest.raises(urllib.error.HTTPError) as refused:
            pair.ask(streams)
        assert refused.value.code == 429
        assert "1 requests a minute" in json.load(refused.value)["error"]["message"]
        pair.prefill.assert_at_rest()
        assert time.monotonic() - begun < PATIENCE_SECONDS, "the room waited for its patience"
