"""One trace over two nodes, from a caller's span to the windows of its hand-over."""

import importlib.util
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import grpc
import pytest

from tasuki.dashboard.metrics.exposition import ERROR, LABELS, METRICS
from tasuki.proto import inference_pb2 as pb
from tasuki.server.traces import NoTracing, TracingUnavailable, open_tracing
from tests.harness import http_calls
from tests.harness.daemons import Node, random_prompt
from tests.harness.grpc_calls import GrpcCalls
from tests.harness.otlp_collector import Collector, SeenSpan, running_collector
from tests.harness.running_nodes import HTTP, node_pair
from tests.harness.waiting import until

pytest.importorskip("opentelemetry.sdk", reason="OpenTelemetry is not installed")
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.semconv.attributes import error_attributes
from opentelemetry.semconv.schemas import Schemas

from tasuki.server.otel import SCHEMA_URL

CALLER = "00f067aa0ba902b7"
ASKED = "text_completion embedded"
CLOCKS = 10**7
"""Largest difference of two clocks on one host, in nanoseconds."""


@dataclass
class Traced:
    collector: Collector
    decode: Node
    prefill: Node


@pytest.fixture(scope="module")
def pair() -> Iterator[Traced]:
    with running_collector() as collector, pytest.MonkeyPatch.context() as patch:
        # The SDK's default is to send every five seconds.
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "200")
        shared = ("--otlp-endpoint", collector.url, "--log-format", "json")
        with node_pair(*shared, decode=HTTP) as (prefill, decode):
            yield Traced(collector, decode, prefill)


def trace_id(number: int) -> str:
    return f"4bf92f3577b34da6a3ce929d0e0e{number:04x}"


def settled(pair: Traced, trace: str, count: int) -> list[SeenSpan]:
    """Return the spans once exactly `count` have arrived. The SDK sends every few seconds."""

    def seen() -> list[str]:
        return [span.name for span in pair.collector.spans(trace)]

    until(lambda: len(seen()) >= count, seen)
    assert len(seen()) == count, seen()
    return pair.collector.spans(trace)


def complete(pair: Traced, trace: str, prompt: tuple[int, ...]) -> None:
    body = {"prompt": prompt, "max_tokens": 4, "ignore_eos": True}
    origin = {"x-request-id": "traced-1", "traceparent": f"00-{trace}-{CALLER}-01"}
    reply = http_calls.ask(pair.decode.http_address, "POST", "/v1/completions", body, origin)
    assert reply.status == 200


def test_a_hand_over_is_one_trace_over_two_nodes(pair: Traced) -> None:
    trace = trace_id(1)
    complete(pair, trace, random_prompt(400, 1))
    spans = settled(pair, trace, 10)
    (request,) = [span for span in spans if span.name == ASKED]
    (transfer,) = [span for span in spans if span.name == "room"]
    assert request.parent == CALLER and request.node == "decode"
    assert request.attributes["tasuki.request_id"] == "traced-1"
    assert request.attributes["gen_ai.usage.input_tokens"] == 400
    assert request.attributes["gen_ai.operation.name"] == "text_completion"
    assert request.attributes["gen_ai.request.model"] == "embedded"
    assert request.attributes["gen_ai.request.max_tokens"] == 4
    assert request.attributes["gen_ai.usage.output_tokens"] == 4
    assert transfer.parent == request.id and transfer.node == "prefill"
    assert transfer.attributes["tasuki.request_id"] == "traced-1"
    assert request.attributes["tasuki.transfer.bytes"] > 0
    beneath = {
        "decode": {"queue", "handshake", "windows", "decode"},
        "prefill": {"queue", "await grant", "prefill", "hand over"},
    }
    for parent in (request, transfer):
        below = [span for span in pair.collector.spans(trace) if span.parent == parent.id]
        named = {span.name: span for span in below if span.name != "room"}
        assert {*named} == beneath[parent.node]
        ordered = sorted(named.values(), key=lambda span: span.began)
        for before, after in pairwise(ordered):
            assert before.began <= before.ended == after.began
        # The engine and the front have two clocks on one host. A busy machine may delay the front
        # before it passes a request on, and before it learns of the end.
        assert parent.began - CLOCKS <= ordered[0].began
        assert abs(ordered[-1].ended - parent.ended) <= CLOCKS
        if parent is request:
            usage = pair.decode.client.explain("traced-1").finished.usage
            took = (ordered[-1].ended - ordered[0].began) / 10**9
            assert took == pytest.approx(usage.seconds, abs=1e-3)


def test_every_gen_ai_name_is_of_the_version_that_is_named(pair: Traced) -> None:
    """Check names against the SDK's package; it holds the names of all versions. The names of the
    last version with them have since only moved to a separate repository. Other names were renamed
    or removed before it."""
    trace = trace_id(3)
    body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2, "top_k": 5}
    headers = {"traceparent": f"00-{trace}-{CALLER}-01"}
    path = "/v1/chat/completions"
    assert http_calls.ask(pair.decode.http_address, "POST", path, body, headers).status == 200
    spans = settled(pair, trace, 4)
    (chat,) = [span for span in spans if span.name == "chat embedded"]
    sent = {name for span in spans for name in span.attributes if name.startswith("gen_ai.")}
    assert len(sent) > 10 and "gen_ai.request.top_k" in sent
    assert sent <= current_names("attributes.gen_ai_attributes")
    operations = gen_ai_attributes.GenAiOperationNameValues
    assert chat.attributes["gen_ai.operation.name"] == operations.CHAT.value
    assert ASKED.split()[0] == operations.TEXT_COMPLETION.value
    assert {*METRICS} <= current_names("metrics.gen_ai_metrics")
    assert {name for name in LABELS if name != ERROR} <= current_names(
        "attributes.gen_ai_attributes"
    )
    assert error_attributes.ERROR_TYPE == ERROR
    assert Schemas.V1_41_1.value == SCHEMA_URL


def current_names(module: str) -> set[str]:
    """Return the names in a module of the SDK's conventions, without names noted as replaced or
    removed. Notes of the remaining names say they moved."""
    told = importlib.util.find_spec(f"opentelemetry.semconv._incubating.{module}")
    assert told is not None and told.origin is not None
    source = Path(told.origin).read_text()
    found = re.findall(r'^GEN_AI_\w+: Final = "([^"]+)"\n"""(.*?)"""', source, re.M | re.S)
    return {name for name, note in found if "Moved to the" in note}


def test_a_short_prompt_is_queue_prefill_and_decode_here(pair: Traced) -> None:
    trace = trace_id(2)
    with grpc.insecure_channel(pair.decode.address) as channel:
        calls = GrpcCalls(channel, (("traceparent", f"00-{trace}-{CALLER}-01"),))
        list(calls.generate(*random_prompt(30, 2), sampling=pb.Sampling(max_new_tokens=3)))
    spans = {span.name: span for span in settled(pair, trace, 4)}
    assert {*spans} == {ASKED, "queue", "prefill", "decode"}
    assert spans["queue"].ended == spans["prefill"].began
    assert spans["prefill"].ended == spans["decode"].began


def test_logs_are_json_with_request_ids_on_both_nodes(pair: Traced) -> None:
    lines = [json.loads(line) for line in pair.decode.last_words]
    ended = [line for line in lines if line.get("request_id") == "traced-1"]
    assert ended and ended[-1]["message"] == "request ended: length"
    assert ended[-1]["prompt_tokens"] == 400 and ended[-1]["prefilled_on"] == "prefill"
    assert all({"time", "level", "logger", "message"} <= {*line} for line in lines)
    transfers = [json.loads(line) for line in pair.prefill.last_words]
    assert any(line.get("request_id") == "traced-1" for line in transfers)


def test_what_is_missing_is_said_with_the_mend(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(open_tracing("", "n", "fused", "m"), NoTracing)
    with pytest.raises(TracingUnavailable, match="is no URL"):
        open_tracing("127.0.0.1:4317", "n", "fused", "m")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(TracingUnavailable, match=r"tasuki\[otel\]"):
        open_tracing("http://127.0.0.1:4317", "n", "fused", "m")
    assert importlib.util.find_spec("opentelemetry") is None
