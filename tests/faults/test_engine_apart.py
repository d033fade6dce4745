"""Engines in separate processes: the same answers, and the effect of an engine's death on its node
and peers."""

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import grpc
import pytest

from tasuki.client.errors import ClientError
from tasuki.client.prompt import Prompt
from tasuki.engine.assembly.ranks import build_node_parts
from tasuki.engine.config import EngineConfig
from tasuki.engine.messages import Usage
from tasuki.prefill_node.config import PrefillConfig
from tasuki.prefill_node.node import PrefillDaemon
from tasuki.proto import inference_pb2 as pb
from tasuki.proto import inference_pb2_grpc as pb_grpc
from tasuki.server.config import ServerConfig
from tasuki.transfer import failpoints
from tests.harness.daemons import (
    COUNTED_CHUNKS,
    Node,
    Question,
    asked,
    flags,
    kept_address,
    meet,
    questions,
    random_prompt,
)
from tests.harness.forked_daemon import ForkedDaemon
from tests.harness.metrics_text import scraped
from tests.harness.processes import ended, engine_of
from tests.harness.running_nodes import CHUNKS, HTTP, refused_start, require_nixl
from tests.harness.waiting import HANG_SECONDS, until

APART = ("--engine-process", "process")
ENDLESS = 2000
LONG, SHORT = 0, 1


@pytest.fixture(scope="module")
def told() -> tuple[Question, ...]:
    """Return the answers of an engine on a thread."""
    return questions((500, 150))


@contextmanager
def put_down(*nodes: Node) -> Iterator[None]:
    try:
        yield
    finally:
        for node in nodes:
            node.put_down()


def right(node: Node, question: Question, salt: bytes = b"") -> Usage:
    answer = asked(node, question.prompt, salt, len(question.tokens)).result()
    assert answer.token_ids == question.tokens
    return answer.usage


def ends_with_its_engine(node: Node) -> None:
    until(lambda: node.exit_status is not None, "the daemon goes on without its engine")
    assert node.stop() == 1


def test_an_engine_apart_answers_and_shows_what_one_beside_does(told: tuple[Question, ...]) -> None:
    node = Node("serve", *flags(), *CHUNKS, *APART, *HTTP).wait_ready()
    with put_down(node):
        engine = engine_of(node.pid)
        changes = node.client.watch_cache()
        assert next(changes).is_snapshot
        for question in told:
            right(node, question)
        hit = right(node, told[LONG]).hit
        assert hit is not None and hit.usable_tokens >= 448
        assert next(changes).events
        prompt = Prompt(token_ids=told[SHORT].prompt)
        node.client.generate(prompt, max_new_tokens=2, request_id="told").result()
        assert node.client.explain("told").finished.usage.prompt_tokens == 150
        with grpc.insecure_channel(node.address) as channel:
            admin = pb_grpc.CacheAdminStub(channel)
            assert admin.Tree(pb.TreeRequest(limit=8), timeout=HANG_SECONDS).nodes
        page = scraped(node.http_address)
        assert page["tasuki_requests_finished_total{reason=length}"] == 4
        assert page["tasuki_engine_step_seconds_count"] > len(told[LONG].tokens)
        node.assert_at_rest()
        # Requests in flight end before both processes do.
        stream = asked(node, told[SHORT].prompt, b"late")
        next(iter(stream))
        node.ask_to_stop()
        assert len(stream.result().token_ids) == len(told[SHORT].tokens)
        assert node.stop() == 0 and ended(engine)


def test_an_engine_that_is_killed_ends_its_node_and_every_request_typed() -> None:
    node = Node("serve", *flags(), *APART).wait_ready()
    with put_down(node):
        streams = [asked(node, random_prompt(80, seed), b"", ENDLESS) for seed in range(3)]
        for stream in streams:
            next(iter(stream))
        os.kill(engine_of(node.pid), signal.SIGKILL)
        for stream in streams:
            with pytest.raises(ClientError, match="SIGKILL; restart this node") as refused:
                stream.result()
            assert refused.value.kind == "internal"
        ends_with_its_engine(node)
        assert any("error: the engine's process was ended by SIGKILL" in w for w in node.last_words)


def test_metrics_are_answered_while_the_engine_stands() -> None:
    node = Node("serve", *flags(), *CHUNKS, *APART, *HTTP).wait_ready()
    with put_down(node):
        asked(node, random_prompt(90, 1), b"", 4).result()
        before = scraped(node.http_address)
        assert before["tasuki_node_state{state=ready}"] == 1
        engine = engine_of(node.pid)
        os.kill(engine, signal.SIGSTOP)
        try:
            silent = "tasuki_engine_silent_seconds"
            until(lambda: scraped(node.http_address)[silent] > 1, "it answers, or nobody does")
            standing = scraped(node.http_address)
            answered = "tasuki_request_prompt_tokens_total"
            assert standing[answered] == before[answered] == 90
            assert standing["tasuki_cache_slab_bytes"] == before["tasuki_cache_slab_bytes"]
        finally:
            os.kill(engine, signal.SIGCONT)
        until(lambda: scraped(node.http_address)[silent] == 0, "it stays silent")
        assert node.stop() == 0


def test_a_front_that_is_killed_leaves_no_engine_and_its_address_is_free() -> None:
    node = Node("serve", *flags(), *APART, bind=kept_address()).wait_ready()
    with put_down(node):
        engine = engine_of(node.pid)
        stream = asked(node, random_prompt(80, 0), b"", ENDLESS)
        next(iter(stream))
        node.kill()
        until(lambda: ended(engine), "the engine goes on without its front")
        with pytest.raises(ClientError):
            stream.result()
    host, port = node.address.split(":")
    with socket.create_server((host, int(port))):
        pass


def test_what_keeps_an_engine_apart_from_starting_is_one_line() -> None:
    words = refused_start("serve", *flags(arena_mib=1), *APART)
    (line,) = [word for word in words if "error:" in word]
    assert line.startswith("tasuki: error: arena_mib"), words


# A test can then find a running hand-over.
SLOWLY = {failpoints.VARIABLE: f"{failpoints.Place.SENDER_BEFORE_POST.value}=delay:0.1"}


class Apart:
    """A prefill and a decode node with engines in separate processes."""

    def __init__(self) -> None:
        require_nixl()
        self.prefill = Node(
            *("prefill", *flags(), *CHUNKS, *COUNTED_CHUNKS, *APART),
            *("--handover-bind", kept_address()),
            bind=kept_address(),
            launch=partial(ForkedDaemon, environment=SLOWLY),
        ).wait_ready()
        known = ("--prefill", self.prefill.handover_address)
        self.decode = Node(
            "decode", *flags(), *CHUNKS, *APART, *known, bind=kept_address()
        ).wait_ready()
        meet(self.decode)


@pytest.mark.slow
def test_a_pair_of_engines_apart_hands_over_and_outlives_each_others_death(
    told: tuple[Question, ...],
) -> None:
    pair = Apart()
    with put_down(pair.decode, pair.prefill):
        usage = right(pair.decode, told[LONG])
        assert usage.prefilled_on == "prefill" and not usage.local_fallback
        for node in (pair.prefill, pair.decode):
            node.assert_at_rest()
        # A decode node's engine dies in its answer: the prefill node lets go.
        stream = asked(pair.decode, told[LONG].prompt, b"second", ENDLESS)
        next(iter(stream))
        os.kill(engine_of(pair.decode.pid), signal.SIGKILL)
        with pytest.raises(ClientError, match="SIGKILL"):
            stream.result()
        ends_with_its_engine(pair.decode)
        pair.prefill.assert_at_rest()
        pair.decode.start_again()
        meet(pair.decode)
        assert right(pair.decode, told[SHORT]).prefilled_on == "prefill"
        # A prefill node's: the prompt is computed here.
        stream = asked(pair.decode, told[LONG].prompt, b"third", len(told[LONG].tokens))
        until(lambda: pair.decode.requests("Receiving") > 0, pair.decode.story)
        os.kill(engine_of(pair.prefill.pid), signal.SIGKILL)
        answer = stream.result()
        assert answer.token_ids == told[LONG].tokens and answer.usage.local_fallback
        ends_with_its_engine(pair.prefill)
        pair.decode.assert_at_rest()
        assert pair.decode.stop() == 0


@pytest.mark.parametrize(
    ("device", "place", "more", "apart"),
    [
        ("cpu", "auto", {}, False),
        ("cuda:1", "auto", {}, True),
        ("cuda", "thread", {}, False),
        ("cpu", "process", {}, True),
        # Decode nodes, or a gateway's calls, come to the front's port.
        ("cuda", "auto", {"handover_bind": ""}, False),
        ("cpu", "process", {"handover_bind": ""}, False),
        ("cpu", "process", {"gateway": True}, False),
    ],
)
def test_where_the_engine_of_a_prefill_node_runs(
    device: str, place: str, more: dict[str, Any], apart: bool
) -> None:
    settings = {"handover_bind": "127.0.0.1:0", "gateway": False} | more
    server = ServerConfig(engine_process=place, gateway=settings["gateway"])
    prefill = PrefillConfig(handover_bind=settings["handover_bind"])
    daemon = PrefillDaemon(EngineConfig(device=device), server, prefill, build_node_parts)
    assert daemon.engine_apart() is apart
