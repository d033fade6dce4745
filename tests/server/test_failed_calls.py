"""Tests of failed calls, counted by the kind reported to clients. The cases cover HTTP and gRPC,
one process and several, and failures before an answer or after its first events."""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest

from tasuki.proto import inference_pb2 as pb
from tasuki.server.drain import CallsInProgress
from tasuki.server.errors import error_kinds
from tests.harness.daemons import Node, flags, random_prompt
from tests.harness.grpc_calls import GrpcCalls
from tests.harness.http_calls import ask
from tests.harness.metrics_text import scraped
from tests.harness.running_nodes import CHUNKS, HTTP, running
from tests.harness.waiting import until

KEY = {"authorization": "Bearer sesame"}
FAILED = "tasuki_calls_failed_total{kind="
CHAT = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}


@contextmanager
def limited(*more: str) -> Iterator[Node]:
    """Yield a node with a limit of three requests a minute for the key's owner."""
    limits = ("--api-key", "sesame", "--requests-per-minute", "3")
    with running(Node("serve", *flags(), *CHUNKS, *HTTP, *limits, *more)) as node:
        yield node


def failed(node: Node) -> Counter[str]:
    reply = ask(node.http_address, "GET", "/metrics", None, KEY)
    assert reply.status == 200
    found = Counter[str]()
    for line in reply.body.decode().splitlines():
        if line.startswith('tasuki_calls_failed_total{kind="'):
            kind, number = line.split('"')[1], line.rpartition(" ")[2]
            found[kind] += int(float(number))
    return found


@pytest.mark.parametrize(
    "workers", [(), ("--front-workers", "2", "--engine-process", "process")], ids=["one", "workers"]
)
def test_refusals_are_counted_wherever_they_are_made(workers: tuple[str, ...]) -> None:
    told: Counter[str] = Counter()
    with limited(*workers) as node:

        def call(body: Any, headers: dict[str, str] = KEY, path: str = "chat/completions") -> int:
            reply = ask(node.http_address, "POST", f"/v1/{path}", body, headers)
            if reply.status != 200:
                told[
                    {"context_length_exceeded": "too_long"}.get(code := reply.error["code"], code)
                ] += 1
            return reply.status

        assert {*failed(node)} >= error_kinds() and not +failed(node)
        assert call(CHAT, {}) == 401
        assert call({**CHAT, "max_tokens": "many"}) == 400
        assert call({**CHAT, "prompt": [1]}, path="completion") == 404
        assert call(CHAT) == 200
        while call(CHAT) != 429:
            assert sum(told.values()) < 9
        with grpc.insecure_channel(node.address) as channel:
            bearing = (("authorization", "Bearer sesame"),)
            for metadata, kind in (((), "invalid_api_key"), (bearing, "rate_limited")):
                with pytest.raises(grpc.RpcError):
                    list(GrpcCalls(channel, metadata).generate(*random_prompt(9, 1)))
                told[kind] += 1
        # A probe is no client's call.
        assert ask(node.http_address, "GET", "/health").status == 200
        assert ask(node.http_address, "GET", "/debug/nothing", None, KEY).status == 404
        assert told["rate_limited"] >= 2 and told["invalid_api_key"] == 2
        # Workers report their counts every few seconds.
        until(lambda: +failed(node) == told, lambda: (+failed(node), told))


def test_an_answer_that_fails_behind_its_first_events_is_counted() -> None:
    """Count a failure after the stream's start. Its status is 200, and its last event has the
    error."""
    with running(
        Node("serve", *flags(), *CHUNKS, *HTTP, "--queue-timeout", "1", "--max-batch", "1")
    ) as node:
        with grpc.insecure_channel(node.address) as channel:
            endless = pb.Sampling(max_new_tokens=2000, ignore_eos=True)
            long = GrpcCalls(channel).generate(*random_prompt(20, 1), sampling=endless)
            next(iter(long))
            reply = ask(node.http_address, "POST", "/v1/chat/completions", {**CHAT, "stream": True})
            long.cancel()
        seen = scraped(node.http_address)
    assert reply.status == 200 and _last_error(reply.body) == "queue_timeout"
    assert seen[f"{FAILED}queue_timeout}}"] == 1
    assert seen["tasuki_requests_rejected_total{kind=queue_timeout}"] == 1


def _last_error(stream: bytes) -> str:
    *_, last, done, end = stream.decode().split("\n\n")
    assert done == "data: [DONE]" and not end
    found: str = json.loads(last.removeprefix("data: "))["error"]["code"]
    return found


def test_every_kind_is_there_before_its_first_failure() -> None:
    calls = CallsInProgress()
    assert {*calls.failures} == error_kinds() and not any(calls.failures.values())
    assert {"internal", "rate_limited", "busy", "draining", "overloaded"} < error_kinds()
    calls.failed("busy")
    assert +calls.failures == Counter(busy=1)
