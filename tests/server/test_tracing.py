"""One trace over two nodes, from a caller's span to the windows of its hand-over."""

import importlib.util
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import grpc
import pytest

from tasuki.proto import inference_pb2 as pb
from tasuki.server.tracing.tracing import NoTracing, TracingUnavailable, open_tracing
from tests.harness import http_calls
from tests.harness.daemons import Node, random_prompt
from tests.harness.grpc_calls import GrpcCalls
from tests.harness.otlp_collector import Collector, SeenSpan, running_collector
from tests.harness.running_nodes import HTTP, node_pair
from tests.harness.waiting import until

CALLER = "00f067aa0ba902b7"
CLOCKS = 10**7
"""Nanoseconds between two clocks of one host."""


@dataclass
class Traced:
    collector: Collector
    decode: Node
    prefill: Node


@pytest.fixture(scope="module")
def pair() -> Iterator[Traced]:
    with running_collector() as collector, pytest.MonkeyPatch.context() as patch:
        # The SDK's own setting: it sends every five seconds otherwise.
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "200")
        shared = ("--otlp-endpoint", collector.url, "--log-format", "json")
        with node_pair(*shared, decode=HTTP) as (prefill, decode):
            yield Traced(collector, decode, prefill)


def trace_id(number: int) -> str:
    return f"4bf92f3577b34da6a3ce929d0e0e{number:04x}"


def settled(pair: Traced, trace: str, count: int) -> list[SeenSpan]:
    """Once that many have come: the SDK sends every few seconds."""

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
    (request,) = [span for span in spans if span.name == "request"]
    (room,) = [span for span in spans if span.name == "room"]
    assert request.parent == CALLER and request.node == "decode"
    assert request.attributes["tasuki.request_id"] == "traced-1"
    assert request.attributes["gen_ai.usage.input_tokens"] == 400
    assert room.parent == request.id and room.node == "prefill"
    assert room.attributes["tasuki.request_id"] == "traced-1"
    assert request.attributes["tasuki.transfer.bytes"] > 0
    beneath = {
        "decode": {"queue", "handshake", "windows", "decode"},
        "prefill": {"queue", "await grant", "prefill", "hand over"},
    }
    for parent in (request, room):
        below = [span for span in pair.collector.spans(trace) if span.parent == parent.id]
        named = {span.name: span for span in below if span.name != "room"}
        assert {*named} == beneath[parent.node]
        ordered = sorted(named.values(), key=lambda span: span.began)
        for before, after in pairwise(ordered):
            assert before.began <= before.ended == after.began
        # Two clocks of one host: the engine's, and that of a front which a busy machine holds up
        # before it hands a request on, and before it learns of its end.
        assert parent.began - CLOCKS <= ordered[0].began
        assert abs(ordered[-1].ended - parent.ended) <= CLOCKS
        if parent is request:
            usage = pair.decode.client.explain("traced-1").finished.usage
            took = (ordered[-1].ended - ordered[0].began) / 10**9
            assert took == pytest.approx(usage.seconds, abs=1e-3)


def test_a_short_prompt_is_queue_prefill_and_decode_here(pair: Traced) -> None:
    trace = trace_id(2)
    with grpc.insecure_channel(pair.decode.address) as channel:
        calls = GrpcCalls(channel, (("traceparent", f"00-{trace}-{CALLER}-01"),))
        list(calls.generate(*random_prompt(30, 2), sampling=pb.Sampling(max_new_tokens=3)))
    spans = {span.name: span for span in settled(pair, trace, 4)}
    assert {*spans} == {"request", "queue", "prefill", "decode"}
    assert spans["queue"].ended == spans["prefill"].began
    assert spans["prefill"].ended == spans["decode"].began


def test_logs_are_json_with_request_ids_on_both_nodes(pair: Traced) -> None:
    lines = [json.loads(line) for line in pair.decode.last_words]
    ended = [line for line in lines if line.get("request_id") == "traced-1"]
    assert ended and ended[-1]["message"] == "request ended: length"
    assert ended[-1]["prompt_tokens"] == 400 and ended[-1]["prefilled_on"] == "prefill"
    assert all({"time", "level", "logger", "message"} <= {*line} for line in lines)
    rooms = [json.loads(line) for line in pair.prefill.last_words]
    assert any(line.get("request_id") == "traced-1" for line in rooms)


def test_what_is_missing_is_said_with_the_mend(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(open_tracing("", "n", "fused"), NoTracing)
    with pytest.raises(TracingUnavailable, match="is no URL"):
        open_tracing("127.0.0.1:4317", "n", "fused")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(TracingUnavailable, match=r"tasuki\[otel\]"):
        open_tracing("http://127.0.0.1:4317", "n", "fused")
    assert importlib.util.find_spec("opentelemetry") is None
