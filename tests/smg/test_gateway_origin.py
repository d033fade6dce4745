"""Tests of a gateway's calls: the key, the trace and the id of each."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import grpc
import pytest

from tasuki.engine import messages as m
from tasuki.prefill_node.gateway_transfers import PATIENCE_SECONDS
from tasuki.server.auth.tenants import RequestContext
from tasuki.server.config import ServerConfig
from tasuki.server.engine_client import EngineClient
from tasuki.server.grpc.server import Service
from tasuki.server.smg.gateway_model import GatewayModel
from tests.harness.api_keys import keys_file, metadata
from tests.harness.daemons import Node
from tests.harness.grpc_fixtures import ScriptedObserver, running_front
from tests.harness.http_calls import Reply
from tests.harness.otlp_collector import Collector, SeenSpan, running_collector
from tests.harness.refusals import refusal
from tests.harness.running_nodes import node_pair
from tests.harness.smg_process import Smg, in_front_of_pair, require_protocol, require_smg, smg
from tests.harness.waiting import until

require_protocol()

from smg_grpc_proto.generated import tokenspeed_scheduler_pb2 as pb  # noqa: E402
from smg_grpc_proto.generated import tokenspeed_scheduler_pb2_grpc as pb_grpc  # noqa: E402

from tasuki.server.smg.service import SERVICE, GatewayService  # noqa: E402

MODEL = GatewayModel(Path("model"), "model", "qwen3_5_text", (), "float32", 320, 100, (2,))
CALLER = "00f067aa0ba902b7"
TRACE = "4bf92f3577b34da6a3ce929d0e0e0001"
TRACEPARENT = f"00-{TRACE}-{CALLER}-01"


def test_each_key_has_its_own_minute_and_its_call_a_trace_and_an_id(tmp_path: Path) -> None:
    ann, ben = "ann-has-this-key", "ben-has-that-key"
    keys = keys_file(tmp_path, f"ann {ann} gateway\nben {ben} gateway\n")
    config = ServerConfig(gateway=True, requests_per_minute=1, api_keys=keys)
    began: list[tuple[m.RequestId, RequestContext]] = []

    def served(client: EngineClient) -> list[Service]:
        servicer = GatewayService(client, client, MODEL, None, 8, config.access.keys)
        add = partial(pb_grpc.add_TokenSpeedSchedulerServicer_to_server, servicer)
        return [Service(SERVICE, add)]

    def begin(request: m.RequestId, context: RequestContext) -> None:
        began.append((request, context))

    with running_front(
        config=config, services=served, observer=ScriptedObserver(beginning=begin)
    ) as front:
        stub = pb_grpc.TokenSpeedSchedulerStub(front.channel)
        prompt = pb.TokenizedInput(input_ids=[5, 6, 7])

        def ask(key: str, request_id: str) -> str:
            """Return the id in an answer's headers, after the complete answer."""
            call = stub.Generate(
                pb.GenerateRequest(request_id=request_id, tokenized=prompt),
                metadata=metadata(key, ("traceparent", TRACEPARENT)),
            )
            assert [message.WhichOneof("response") for message in call] == ["complete"]
            return str(dict(call.initial_metadata())["tasuki-request-id"])

        assert ask(ann, "a-1") == "a-1"
        refused = refusal(ask, ann, "a-2")
        assert refused.typed == (grpc.StatusCode.RESOURCE_EXHAUSTED, "rate_limited")
        assert "ann has used its 1 requests a minute" in refused.message
        given = ask(ben, "")
        assert given, "a call without an id is told the one that the log has"
    assert [(name, context.caller.name, context.traceparent) for name, context in began] == [
        ("a-1", "ann", TRACEPARENT),
        (given, "ben", TRACEPARENT),
    ]


@dataclass(frozen=True)
class Fronted:
    """A pair behind the real gateway. The decode node answers one request a minute."""

    gateway: Smg
    prefill: Node
    decode: Node
    collector: Collector

    def spans(self, name: str) -> list[SeenSpan]:
        """Return the spans with `name` as their first word."""
        return [span for span in self.collector.spans(TRACE) if span.name.split()[0] == name]

    def ask(self, streams: bool = False) -> Reply:
        content = "Tell me a story about the runner. " * 20
        return self.gateway.chat(
            {"traceparent": TRACEPARENT},
            model="embedded",
            messages=[{"role": "user", "content": content}],
            max_tokens=4,
            rid="asked",
            stream=streams,
        )


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fronted]:
    require_smg()
    with running_collector() as collector, pytest.MonkeyPatch.context() as patch:
        # The SDK's default is to send every five seconds.
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "200")
        shared = ("--gateway", "--otlp-endpoint", collector.url)
        traced = ("--enable-trace", "--otlp-traces-endpoint", collector.url.partition("//")[2])
        with node_pair(*shared, decode=("--requests-per-minute", "1")) as (prefill, decode):
            folder, flags = tmp_path_factory.mktemp("smg"), in_front_of_pair(prefill, decode)
            with smg(folder, 2, *flags, *traced) as gateway:
                yield Fronted(gateway, prefill, decode, collector)


def test_a_trace_goes_through_the_gateway_to_both_nodes_and_a_limit_to_its_caller(
    pair: Fronted,
) -> None:
    told = pair.ask().json["id"]
    assert told.startswith("asked")
    until(
        lambda: bool(pair.spans("text_completion") and pair.spans("room")),
        lambda: pair.collector.spans(TRACE),
    )
    (asked,), (transfer,) = pair.spans("text_completion"), pair.spans("room")
    assert asked.node == "decode" and transfer.node == "prefill"
    assert transfer.parent == asked.id
    # The gateway's own span lies between the caller's and the node's.
    assert asked.parent != CALLER
    for span in (asked, transfer):
        assert span.attributes["tasuki.request_id"] == told
    for node in (pair.decode, pair.prefill):
        assert any(told in line for line in node.last_words), node.last_words
    # The decode node refuses before its stream begins, so the prefill node does not wait.
    for streams in (False, True):
        begun = time.monotonic()
        refused = pair.ask(streams)
        assert refused.status == 429 and "1 requests a minute" in refused.error["message"]
        pair.prefill.assert_at_rest()
        assert time.monotonic() - begun < PATIENCE_SECONDS, "the room waited for its patience"
