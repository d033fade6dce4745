"""Tests of memory held by requests: it is counted by its bytes, and no larger than needed."""

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, ClassVar, cast

import grpc
import pytest
from aiohttp import web

from tasuki.engine import messages as m
from tasuki.server.auth.callers import ANYBODY
from tasuki.server.auth.limits import HeldBytes
from tasuki.server.config import ServerConfig
from tasuki.server.grpc.services import grpc_services
from tasuki.server.http.bounded_reading import BODY_TURNS, BodyTurns, read_body
from tasuki.server.openai.generation import ServedModel
from tasuki.server.text.text_codec import TextCodec
from tasuki.server.unread_answer import UnreadAnswer
from tests.harness.agent_front import AgentFront, agent_codec, running_agent_front
from tests.harness.api_keys import headers, keys_file
from tests.harness.grpc_fixtures import running_front
from tests.harness.http_calls import Reply, named_events
from tests.harness.http_fixtures import HttpFront, running_http
from tests.harness.traced_memory import growing
from tests.harness.waiting import HANG_SECONDS, until

MIB = 2**20
LARGE = "x" * (8 * MIB)
MOST_KEPT_BYTES = MIB // 2
"""Most memory kept for a stream with a body of 8 MiB."""

CHAT = {"messages": [{"role": "user", "content": "it was"}], "max_tokens": 9}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {**CHAT, "service_tier": LARGE},
    "/v1/completions": {"prompt": "it was", "max_tokens": 9, "service_tier": LARGE},
    "/v1/messages": {**CHAT, "service_tier": LARGE},
    "/v1/responses": {"input": "it was", "service_tier": LARGE},
}


@contextmanager
def begun_stream(front: AgentFront, path: str, body: dict[str, Any]) -> Iterator[None]:
    """Open a stream; the engine has its request and has not answered."""
    sent = json.dumps({**body, "stream": True}).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer k1\r\nContent-Length: {len(sent)}\r\n\r\n"
    )
    asked = len(front.submits())
    with closing(socket.create_connection(("127.0.0.1", front.http.server.port))) as connection:
        connection.settimeout(HANG_SECONDS)
        connection.sendall(head.encode() + sent)
        del sent
        until(lambda: len(front.submits()) > asked, lambda: "the engine was not asked")
        yield


@pytest.mark.parametrize("path", BODIES)
def test_a_stream_does_not_keep_its_body(codec: TextCodec, path: str) -> None:
    with running_agent_front(codec) as front:
        front.http.engine.hold = True
        small = {name: value for name, value in BODIES[path].items() if value is not LARGE}
        with begun_stream(front, path, small):
            pass
        with growing() as grown, begun_stream(front, path, BODIES[path]):
            time.sleep(0.2)
            assert grown() < MOST_KEPT_BYTES


# --- Bodies


@contextmanager
def two_keys(
    folder: Path, codec: TextCodec, most: int, **settings: Any
) -> Iterator[tuple[HttpFront, HeldBytes]]:
    """Yield a front with the keys k1 and k2. Their requests may hold `most` bytes in all."""
    config = ServerConfig(api_keys=keys_file(folder, "ann k1\nbob k2\n"), **settings)
    held = HeldBytes(most)
    model = ServedModel("tiny", 1_700_000_000, 1 << 15, codec, held=held)
    with running_http(codec, config, model=model) as http:
        yield http, held


@contextmanager
def half_sent(http: HttpFront, key: str, size: int) -> Iterator[None]:
    """Send `size` bytes of a body announced with twice the size."""
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {key}\r\nContent-Length: {2 * size}\r\n\r\n"
    )
    with http.dial() as connection:
        connection.sendall(head.encode() + b" " * size)
        yield


def complete(http: HttpFront, key: str, size: int) -> Reply:
    body = {"prompt": "it was", "max_tokens": 3, "service_tier": "x" * size}
    return http.post("/v1/completions", body, headers(key))


def test_bodies_of_one_key_wait_within_its_half_of_the_bound(
    codec: TextCodec, tmp_path: Path
) -> None:
    with two_keys(tmp_path, codec, 4 * MIB) as (http, held):
        with half_sent(http, "k1", MIB):
            _until_counted(held, MIB)
            refused = complete(http, "k1", MIB + MIB // 2)
            assert refused.refusal == (503, "busy")
            assert refused.headers["Retry-After"]
            assert complete(http, "k1", MIB // 2).status == 200
            assert complete(http, "k2", MIB + MIB // 2).status == 200
        _until_counted(held, 0)
        assert complete(http, "k1", MIB + MIB // 2).status == 200
        assert complete(http, "k1", 2 * MIB).status == 400
        _until_counted(held, 0)


def test_body_without_a_length_is_counted_as_it_comes(codec: TextCodec, tmp_path: Path) -> None:
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        "Authorization: Bearer k1\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    with two_keys(tmp_path, codec, 2 * MIB) as (http, held), http.dial() as connection:
        connection.sendall(head.encode() + chunk * 8)
        _until_counted(held, MIB // 2)
        connection.sendall(chunk * 9)
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 400")


def _until_counted(held: HeldBytes, size: int) -> None:
    until(lambda: held.total == size, lambda: f"{held.total} bytes are counted")


class Dribbled:
    """A request with a body in pieces of two bytes, with the attributes used by read_body()."""

    client_max_size = MIB
    content_length = None
    headers: ClassVar[dict[str, str]] = {}

    def __init__(self, count: int) -> None:
        self._count = count
        self.content = self
        self.app = {BODY_TURNS: BodyTurns()}

    async def iter_any(self) -> AsyncIterator[bytes]:
        for number in range(self._count):
            yield b"0123456789"[number % 9 : number % 9 + 2]


def test_body_of_many_small_pieces_takes_little_more_than_its_bytes() -> None:
    count = 100_000

    async def script() -> bytearray:
        with HeldBytes().hold(ANYBODY) as hold:
            body = await read_body(cast(web.Request, Dribbled(count)), hold)
            assert hold.size == 2 * count
        return body

    with growing() as grown:
        body = asyncio.run(script())
        assert grown() < 1.25 * 2 * count + 50_000
    assert (len(body), body[:6]) == (2 * count, b"011223")


def test_messages_of_grpc_are_counted_against_the_key_s_half(tmp_path: Path) -> None:
    config = ServerConfig(api_keys=keys_file(tmp_path, "ann k1\nbob k2\n"))
    held = HeldBytes(4 * MIB)
    codec = TextCodec(320, 1 << 20, None, None)
    tokens = [5] * 300_000
    with running_front(
        codec,
        config,
        services=lambda client: grpc_services(client, codec, config, held=held),
    ) as front:
        front.engine.hold = True
        first = front.bearing("k1").generate(*tokens)
        until(lambda: len(front.engine.of(m.Submit)) == 1, lambda: "the engine was not asked")
        assert held.total >= 4 * len(tokens)
        with pytest.raises(grpc.RpcError) as refused:
            list(front.bearing("k1").generate(*tokens))
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        second = front.bearing("k2").generate(*tokens)
        until(lambda: len(front.engine.of(m.Submit)) == 2, lambda: "the engine was not asked")
        for call in (first, second):
            call.cancel()
        _until_counted(held, 0)


# --- Memory kept by a request


def test_tools_of_a_stream_are_counted_by_their_objects(codec: TextCodec, tmp_path: Path) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    nested = {**tool, "x": [[] for _ in range(5000)]}
    counted: list[int] = []
    with two_keys(tmp_path, agent_codec(codec), 64 * MIB) as (http, held):
        http.engine.hold = True
        front = AgentFront(http, codec)
        for tools in ([tool], [nested]):
            with begun_stream(front, "/v1/chat/completions", {**CHAT, "tools": tools}):
                counted.append(held.total)
            _until_counted(held, 0)
    assert counted[1] - counted[0] >= 5000 * 64


def test_scores_beyond_a_reply_s_bound_are_refused_before_the_engine_is_asked(
    codec: TextCodec,
) -> None:
    with running_agent_front(codec, max_tokens=1 << 17) as front:
        long = {"messages": [{"role": "user", "content": "it " * 27_000}]}
        reply = front.http.post("/v1/chat/completions", {**long, "prompt_logprobs": 20})
        assert (reply.status, reply.error["param"]) == (400, "prompt_logprobs")
        assert not front.submits()


def test_scores_are_counted_before_the_engine_is_asked(codec: TextCodec, tmp_path: Path) -> None:
    with two_keys(tmp_path, codec, 4 * MIB) as (http, _):
        asked = {"prompt": [5] * 500, "max_tokens": 1}
        assert http.post("/v1/completions", asked, headers("k1")).status == 200
        reply = http.post("/v1/completions", {**asked, "prompt_logprobs": 20}, headers("k1"))
        assert reply.status == 400 and "send less" in reply.error["message"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_whole_reply_with_logprobs_that_grows_beyond_the_share_is_refused(
    codec: TextCodec, tmp_path: Path, path: str
) -> None:
    with two_keys(tmp_path, codec, MIB // 8) as (http, held):
        http.engine.answer = lambda submit: [70] * 4000
        body = dict(BODIES[path], service_tier=None, max_tokens=4000)
        logprobs = {"logprobs": True} if "chat" in path else {"logprobs": 0}
        assert http.post(path, body, headers("k1")).status == 200
        refused = http.post(path, {**body, **logprobs}, headers("k1"))
        assert refused.status == 400 and "send less" in refused.error["message"]
        _until_counted(held, 0)


def test_whole_reply_that_is_not_read_is_counted_until_its_client_leaves(
    codec: TextCodec, tmp_path: Path
) -> None:
    codec = TextCodec(320, 1 << 24, codec.tokenizer, codec.template)
    body = json.dumps({"prompt": [5] * 1_000_000, "return_token_strs": True}).encode()
    head = (
        "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer k1\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with two_keys(tmp_path, codec, 512 * MIB) as (http, held):
        with http.dial() as connection:
            connection.sendall(head.encode() + body)
            time.sleep(0.1)
            until(lambda: connection.recv(1, socket.MSG_PEEK) == b"H", lambda: "no reply")
            time.sleep(0.3)
            assert held.total > MIB
        _until_counted(held, 0)


# --- Events about the stream itself

TOOL = {"type": "function", "name": "f", "description": "so " * 1000, "parameters": {}}


def test_events_that_keep_a_response_alive_echo_nothing(codec: TextCodec) -> None:
    echoed = {
        "instructions": "be brief " * 1000,
        "tools": [TOOL],
        "metadata": {"a": "b" * 512},
        "text": {"format": {"type": "json_schema", "name": "n" * 60, "schema": {"type": "object"}}},
    }
    with running_agent_front(codec) as front:
        front.say('</think>{"a": 1}')
        body = {"input": "it was", "stream": True, **echoed}
        events = named_events(front.http.post("/v1/responses", body))
    created, begun, *_, last = events
    assert (created["type"], begun["type"]) == ("response.created", "response.in_progress")
    for event in (created, last):
        response = event["response"]
        assert response["instructions"] == echoed["instructions"]
        tools = [{**TOOL, "strict": None}]
        assert (response["metadata"], response["tools"]) == (echoed["metadata"], tools)
        assert response["text"] == echoed["text"]
    assert len(json.dumps(begun)) < 1000
    response = begun["response"]
    assert set(response) == set(created["response"]), "no field is left out"
    assert (response["id"], response["status"]) == (last["response"]["id"], "in_progress")
    assert (response["instructions"], response["metadata"], response["tools"]) == (None, {}, [])
    assert response["output"] == []


# --- Bytes waiting for a reader


def drawn(index: int, top: int) -> m.TokenOut:
    others = tuple((1000 + index + other, -1.5 - other / 3) for other in range(top))
    return m.TokenOut(m.RequestId("a"), 1000 + index, -0.1 * index, 1 / (3 + index), index, others)


@pytest.mark.parametrize(("top", "most"), [(0, 32), (20, 350)])
async def test_tokens_that_wait_take_few_bytes_and_come_as_they_were(top: int, most: int) -> None:
    count = 4000

    unread = UnreadAnswer(count)
    with growing() as grown:
        for index in range(count):
            assert unread.put(drawn(index, top))
        assert grown() < most * count + 50_000 * (1 + top)
    assert not unread.put(drawn(count, top)), "one too many"
    read: list[m.TokenOut] = []
    while len(read) < count:
        part = await unread.read()
        assert not isinstance(part, m.Finished) and len(part) <= 64
        read += part
    assert read == [drawn(index, top) for index in range(count)]
