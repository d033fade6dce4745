"""Whose call a gateway's is: the key that it bears, the trace that it belongs to, and its id."""

import asyncio
import json
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import grpc
import pytest
from tasuki.engine import messages as m
from tasuki.front.config import FrontConfig
from tasuki.front.engine_client import EngineClient
from tasuki.front.gateway_model import GatewayModel
from tasuki.front.origin import Origin
from tasuki.front.server import Service, start_server

from tests.daemons import Node, flags, until
from tests.front_fixtures import ScriptedEngine
from tests.otlp_collector import SeenSpan, running_collector
from tests.smg_process import require_protocol, require_smg, smg

require_protocol()

from smg_grpc_proto.generated import tokenspeed_scheduler_pb2 as pb  # noqa: E402
from smg_grpc_proto.generated import tokenspeed_scheduler_pb2_grpc as pb_grpc  # noqa: E402
from tasuki.front.gateway_service import SERVICE, GatewayService  # noqa: E402

MODEL = GatewayModel(Path("model"), "model", "qwen3_5_text", (), "float32", 320, 100, (2,))
CALLER = "00f067aa0ba902b7"
TRACE = "4bf92f3577b34da6a3ce929d0e0e0001"
TRACEPARENT = f"00-{TRACE}-{CALLER}-01"


@contextmanager
def gateway_front(config: FrontConfig) -> Iterator[tuple[str, list[tuple[m.RequestId, Origin]]]]:
    """The gateway's service over a scripted engine: its address, and who began what."""
    began: list[tuple[m.RequestId, Origin]] = []
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    engine = ScriptedEngine()
    client = EngineClient(
        engine.post,
        loop,
        limits=config.limits,
        begin=lambda request, origin: began.append((request, origin)),
    )
    engine.deliver = client.deliver
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
    keys.write_text("ann ann-has-this-key\nben ben-has-that-key\n", encoding="utf-8")
    config = FrontConfig(gateway=True, requests_per_minute=1, api_keys=str(keys))
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
    assert [(name, origin.caller, origin.traceparent) for name, origin in began] == [
        ("a-1", "ann", TRACEPARENT),
        (given, "ben", TRACEPARENT),
    ]


def test_a_caller_s_trace_goes_through_the_gateway_to_both_nodes_of_a_pair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_smg()
    # The SDK's own setting: it sends every five seconds otherwise.
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "200")
    with running_collector() as collector:
        shared = [*flags(), "--gateway", "--otlp-endpoint", collector.url]
        prefill = Node("prefill", *shared).wait_ready()
        decode = Node("decode", *shared, "--prefill", prefill.address).wait_ready()

        def spans(name: str) -> list[SeenSpan]:
            return [span for span in collector.spans(TRACE) if span.name == name]

        try:
            with smg(
                tmp_path,
                2,
                "--pd-disaggregation",
                *("--prefill", f"grpc://{prefill.address}", prefill.address.rpartition(":")[2]),
                *("--decode", f"grpc://{decode.address}"),
                *("--enable-trace", "--otlp-traces-endpoint", collector.url.partition("//")[2]),
            ) as gateway:
                story = "Tell me a story about the runner and the sash. " * 20
                body = {
                    "model": "embedded",
                    "messages": [{"role": "user", "content": story}],
                    "max_tokens": 4,
                    "rid": "asked-1",
                }
                request = urllib.request.Request(
                    f"{gateway.base_url}/v1/chat/completions",
                    json.dumps(body).encode(),
                    {"Content-Type": "application/json", "traceparent": TRACEPARENT},
                )
                with urllib.request.urlopen(request, timeout=60) as reply:
                    told = json.load(reply)["id"]
                assert told.startswith("asked-1")
                until(
                    lambda: bool(spans("request") and spans("room")),
                    lambda: collector.spans(TRACE),
                    20,
                )
                (asked,), (room,) = spans("request"), spans("room")
                assert asked.node == "decode" and room.node == "prefill"
                assert room.parent == asked.id
                # The gateway's own span stands between the caller's and the node's.
                assert asked.parent != CALLER
                for span in (asked, room):
                    assert span.attributes["tasuki.request_id"] == told
        finally:
            assert [decode.stop(), prefill.stop()] == [0, 0]
        for node in (decode, prefill):
            assert any(told in line for line in node.last_words), node.last_words
