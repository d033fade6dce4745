"""One trace over two nodes, from a caller's span to the windows of its hand-over."""

import importlib.util
import json
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass

import grpc
import pytest
from tasuki.front import trace_export
from tasuki.front.trace_export import TracingUnavailable, open_tracing
from tasuki.front.tracing import NoTracing, Phases
from tasuki.proto import inference_pb2 as pb
from tasuki.proto import inference_pb2_grpc as pb_grpc
from tasuki.transfer.transports.nixl import installed_package

from tests.daemons import Node, flags, random_prompt, until
from tests.otlp_collector import Collector, SeenSpan, running_collector

CALLER = "00f067aa0ba902b7"


@dataclass
class Traced:
    collector: Collector
    decode: Node
    prefill: Node


@pytest.fixture(scope="module")
def pair() -> Iterator[Traced]:
    if installed_package() is None:
        pytest.skip("NIXL is not installed")
    with running_collector() as collector:
        more = ("--otlp-endpoint", collector.url, "--log-format", "json")
        prefill = Node("prefill", *flags(), *more).wait_ready()
        decode = Node(
            *("decode", *flags(), *more, "--http-bind", "127.0.0.1:0"),
            *("--prefill", prefill.address),
        ).wait_ready()
        until(lambda: decode.stats().prefill_nodes[0].name == "prefill", decode.story)
        yield Traced(collector, decode, prefill)
        assert [decode.stop(), prefill.stop()] == [0, 0]


def trace_id(number: int) -> str:
    return f"4bf92f3577b34da6a3ce929d0e0e{number:04x}"


def settled(pair: Traced, trace: str, count: int) -> dict[str, SeenSpan]:
    """By name, once that many have come: the SDK sends every few seconds."""
    until(
        lambda: len(pair.collector.spans(trace)) >= count,
        lambda: [span.name for span in pair.collector.spans(trace)],
        20.0,
    )
    spans = {span.name: span for span in pair.collector.spans(trace)}
    assert len(spans) == count, [*spans]
    return spans


def complete(pair: Traced, trace: str, prompt: tuple[int, ...]) -> None:
    body = {"prompt": prompt, "max_tokens": 4, "ignore_eos": True}
    request = urllib.request.Request(
        f"http://{pair.decode.http_address}/v1/completions",
        json.dumps(body).encode(),
        {
            "Content-Type": "application/json",
            "x-request-id": "traced-1",
            "traceparent": f"00-{trace}-{CALLER}-01",
        },
    )
    with urllib.request.urlopen(request, timeout=60) as reply:
        assert reply.status == 200


def test_a_hand_over_is_one_trace_over_two_nodes(pair: Traced) -> None:
    trace = trace_id(1)
    complete(pair, trace, random_prompt(400, 1))
    spans = settled(pair, trace, 8)
    request = spans["request"]
    assert request.parent == CALLER and request.node == "decode"
    assert request.attributes["tasuki.request_id"] == "traced-1"
    assert request.attributes["gen_ai.usage.input_tokens"] == 400
    there = {"prefill queue", "prefill", "send windows"}
    assert {name for name, span in spans.items() if span.node == "prefill"} == there
    assert {*spans} - there == {"request", "queue", "handshake", "windows", "decode"}
    for name, span in spans.items():
        assert span.began <= span.ended and not span.failed
        if name != "request":
            assert span.parent == request.id
            # Two processes of one host read one clock.
            assert request.began - 10**6 <= span.began and span.ended <= request.ended + 10**8
    assert spans["prefill"].attributes["tasuki.request_id"] == "traced-1"
    assert spans["windows"].attributes["tasuki.bytes"] > 0


def test_a_short_prompt_is_queue_prefill_and_decode_here(pair: Traced) -> None:
    trace = trace_id(2)
    with grpc.insecure_channel(pair.decode.address) as channel:
        request = pb.GenerateRequest(
            token_ids=pb.TokenIds(ids=random_prompt(30, 2)), sampling=pb.Sampling(max_new_tokens=3)
        )
        metadata = (("traceparent", f"00-{trace}-{CALLER}-01"),)
        list(pb_grpc.InferenceStub(channel).Generate(request, metadata=metadata))
    spans = settled(pair, trace, 4)
    assert {*spans} == {"request", "queue", "prefill", "decode"}
    assert spans["queue"].ended <= spans["prefill"].began + 1000
    assert spans["prefill"].ended <= spans["decode"].began + 1000


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
    monkeypatch.setattr(trace_export.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(TracingUnavailable, match=r"tasuki\[otel\]"):
        open_tracing("http://127.0.0.1:4317", "n", "fused")
    assert importlib.util.find_spec("opentelemetry") is None


def test_a_phase_that_is_cut_says_so() -> None:
    told: list[tuple[str, bool]] = []

    class Ears(NoTracing):
        def span(self, traceparent, name, began, ended, attributes):  # type: ignore[no-untyped-def, override]
            assert began <= ended and traceparent == "00-x"
            told.append((name, bool(attributes.get("tasuki.cut"))))

    with Phases(Ears(), "00-x", {}) as phases:
        phases.begin("handshake")
        phases.end("handshake")
        phases.end("never begun")
        phases.begin("windows")
    assert told == [("handshake", False), ("windows", True)]
