"""Tests of the HTTP server and of features common to all routes: probes, keys, refusals, clients
that leave."""

import json
import socket

import pytest
from aiohttp import ClientConnectionResetError

from tasuki.engine import messages as m
from tasuki.server.auth.callers import ANYBODY
from tasuki.server.config import ServerConfig
from tasuki.server.http.server import HttpLog
from tasuki.server.text.text_codec import TextCodec
from tests.harness.api_keys import headers
from tests.harness.http_calls import JSON
from tests.harness.http_fixtures import HttpFront, running_http
from tests.harness.waiting import until

KEY = "a-key-of-this-test"


def test_probes_and_version(http: HttpFront) -> None:
    assert [http.ask("GET", path).status for path in ("/health", "/ready", "/version")] == [200] * 3
    assert set(http.ask("GET", "/version").json) == {"version"}


def test_a_draining_node_is_alive_but_not_ready(http: HttpFront) -> None:
    http.front.loop.call_soon_threadsafe(http.front.client.rotation.leave)
    assert http.ask("GET", "/ready").refusal == (503, "draining")
    assert http.ask("GET", "/health").status == 200


def test_an_answer_of_a_node_out_of_rotation_is_the_last_of_its_connection(http: HttpFront) -> None:
    connection = http.connect()
    body = {"prompt": [5], "max_tokens": 1}

    def asked() -> tuple[int, str | None]:
        connection.request("POST", "/v1/completions", json.dumps(body), JSON)
        reply = connection.getresponse()
        reply.read()
        return reply.status, reply.headers["Connection"]

    assert asked() == (200, None)
    first = connection.sock
    http.front.loop.call_soon_threadsafe(http.front.client.rotation.leave)
    until(lambda: http.ask("GET", "/ready").status == 503, "it stays ready")
    assert asked() == (200, "close") and connection.sock is None and first is not None
    http.front.loop.call_soon_threadsafe(http.front.client.rotation.come_back)
    until(lambda: http.ask("GET", "/ready").status == 200, "it does not come back")
    assert asked() == (200, None)
    connection.close()


def test_a_dead_engine_is_neither(http: HttpFront) -> None:
    http.front.loop.call_soon_threadsafe(http.front.client.engine_lost, "out of luck")
    for path in ("/health", "/ready"):
        reply = http.ask("GET", path)
        assert reply.status == 503 and "out of luck" in reply.error["message"]
    assert http.complete().status == 500


def test_models_are_told_with_their_length(http: HttpFront) -> None:
    (card,) = http.ask("GET", "/v1/models").json["data"]
    assert (card["id"], card["object"], card["max_model_len"]) == ("tiny", "model", 1000)
    assert http.ask("GET", "/v1/models/tiny").json == card
    assert http.ask("GET", "/v1/models/huge").refusal == (404, "model_not_found")


def test_tokenize_reads_text_and_chats(http: HttpFront, codec: TextCodec) -> None:
    text = "it was<|im_end|>"
    told = http.post("/tokenize", {"prompt": text}).json
    assert told["tokens"] == codec.require_tokenizer().encode(text)
    assert (told["count"], told["max_model_len"]) == (len(told["tokens"]), 1000)
    messages = [{"role": "user", "content": text}]
    opened = http.post("/tokenize", {"messages": messages}).json["tokens"]
    closed = http.post("/tokenize", {"messages": messages, "add_generation_prompt": False}).json
    assert opened[: closed["count"]] == closed["tokens"] and len(opened) > closed["count"]


def test_a_key_is_asked_for_and_never_logged(
    codec: TextCodec, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    with running_http(codec, ServerConfig(api_key=KEY)) as http:
        for wrong in ({}, headers("x"), {"Authorization": KEY}):
            reply = http.complete(wrong)
            assert reply.refusal == (401, "invalid_api_key")
            assert KEY not in reply.body.decode()
        assert http.ask("GET", "/v1/models").status == 401
        assert http.ask("GET", "/ready").status == 200
        assert http.complete(headers(KEY)).status == 200
    assert KEY not in caplog.text


def invalid(body: bytes) -> tuple[str, str, bytes, dict[str, str], int, str]:
    return "POST", "/v1/completions", body, {}, 400, "invalid"


@pytest.mark.parametrize(
    ("method", "path", "body", "more", "status", "code"),
    [
        ("GET", "/nowhere", None, {}, 404, "not_found"),
        ("GET", "/v1/completions", None, {}, 405, "method_not_allowed"),
        invalid(b"{"),
        invalid(b"\xff"),
        invalid(b"[]"),
        invalid(b'{"prompt": "\\ud800"}'),
        invalid(b'{"temperature": NaN}'),
        invalid(b'{"a":' + b"[" * 5000 + b"]" * 5000 + b"}"),
        invalid(b'{"a":' + b"[" * 99 + b"]" * 99 + b"}"),
        ("POST", "/v1/completions", b"{}", {"Content-Type": "text/plain"}, 415, "not_json"),
        ("POST", "/v1/completions", b" " * (33 * 2**20), {}, 413, "body_too_large"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_what_is_no_request_is_refused_in_openais_shape(
    http: HttpFront,
    method: str,
    path: str,
    body: bytes | None,
    more: dict[str, str],
    status: int,
    code: str,
) -> None:
    reply = http.ask(method, path, body, more)
    assert reply.refusal == (status, code)
    assert reply.error["type"] == "invalid_request_error" and reply.error["message"]
    if status == 413:
        assert reply.error["message"] == "the body has more than 32 MiB: see --max-message-mib"


@pytest.mark.parametrize(
    ("method", "path", "named", "fix", "allow"),
    [
        ("POST", "/chat/completions", "POST '/chat/completions'", "/v1/chat/completions", None),
        ("GET", "/v1/completions", "GET '/v1/completions'", "ask by POST", "POST"),
        ("PATCH", "/v1/models", "PATCH '/v1/models'", "ask by GET or HEAD", "GET,HEAD"),
    ],
)
def test_a_path_or_method_that_is_not_served_is_named_with_what_is(
    http: HttpFront, method: str, path: str, named: str, fix: str, allow: str | None
) -> None:
    reply = http.ask(method, path)
    message = reply.error["message"]
    assert message.startswith(f"{named} is not served here: ") and fix in message
    assert reply.headers.get("Allow") == allow


@pytest.mark.parametrize(
    ("kind", "status", "code", "retry"),
    [
        (m.ErrorKind.INVALID, 400, "invalid", None),
        (m.ErrorKind.TOO_LONG, 400, "context_length_exceeded", None),
        (m.ErrorKind.DRAINING, 503, "draining", "1"),
        (m.ErrorKind.QUEUE_TIMEOUT, 503, "queue_timeout", "1"),
        (m.ErrorKind.OVERLOADED, 429, "overloaded", "1"),
        (m.ErrorKind.INTERNAL, 500, "internal", None),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_the_engine_refuses_has_a_status(
    http: HttpFront, kind: m.ErrorKind, status: int, code: str, retry: str | None, stream: bool
) -> None:
    http.engine.reject = m.RequestError(kind, "no, thank you")
    reply = http.complete(stream=stream)
    assert reply.refusal == (status, code)
    assert reply.error["message"] == "no, thank you"
    assert reply.headers.get("Retry-After") == retry


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_aborts_its_request(http: HttpFront, stream: bool) -> None:
    http.engine.hold = True
    connection = http.begin({"x-request-id": "r"}, stream=stream)
    if stream:
        assert connection.getresponse().readline()
    http.engine.wait_for(m.Submit)
    connection.close()
    assert http.engine.wait_for(m.Abort)[0].request_id == "r"


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_closes_its_half_has_left(http: HttpFront, stream: bool) -> None:
    """Abort the request: the end of a half-closed connection looks like the end of a lost
    client's."""
    http.engine.hold = True
    connection = http.begin({"x-request-id": "r"}, stream=stream)
    http.engine.wait_for(m.Submit)
    connection.sock.shutdown(socket.SHUT_WR)
    assert http.engine.wait_for(m.Abort)[0].request_id == "r"
    said = b"".join(iter(lambda: connection.sock.recv(1 << 16), b""))
    assert b"[DONE]" not in said and (stream or not said)
    connection.close()


def test_an_abort_from_elsewhere_is_an_error(http: HttpFront) -> None:
    http.engine.hold = True
    connection = http.begin({"x-request-id": "r"}, stream=True)
    response = connection.getresponse()
    assert response.status == 200
    http.front.loop.call_soon_threadsafe(http.front.client.abort, m.RequestId("r"), ANYBODY)
    *_, last, done, _ = response.read().decode().split("\n\n")
    assert '"code":"aborted"' in last and done == "data: [DONE]"
    connection.close()


def test_of_two_in_flight_with_one_id_the_later_gets_another(http: HttpFront) -> None:
    http.engine.hold = True
    first = http.begin({"x-request-id": "r"}, stream=True)
    http.engine.wait_for(m.Submit)
    second = http.begin({"x-request-id": "r"}, stream=True)
    other = second.getresponse()
    named = [submit.request_id for submit in http.engine.wait_for(m.Submit, 2)]
    assert named[0] == first.getresponse().headers["x-request-id"] == "r"
    assert named[1] == other.headers["x-request-id"] != "r"
    assert f"cmpl-{named[1]}" in other.readline().decode()
    first.close()
    second.close()
    http.engine.wait_for(m.Abort, 2)


def test_an_id_of_a_call_over_grpc_is_not_taken_twice(http: HttpFront) -> None:
    http.engine.hold = True
    call = http.front.calls.generate(5, request_id="r")
    http.engine.wait_for(m.Submit)
    connection = http.begin({"x-request-id": "r"}, stream=True)
    assert connection.getresponse().headers["x-request-id"] != "r"
    connection.close()
    call.cancel()


def test_a_reader_that_falls_behind_is_cut_off(codec: TextCodec) -> None:
    with running_http(codec, queue_limit=16) as http:
        http.engine.hold = True
        http.engine.answer = lambda submit: [7] * 20_000
        error = http.complete(stream=True).events[-1]["error"]
        assert (error["code"], error["type"]) == ("slow_reader", "rate_limit_error")
        reply = http.complete()
        assert (reply.status, reply.headers["Retry-After"]) == (429, "1")
        assert len(http.engine.wait_for(m.Abort, 2)) >= 2


def test_a_stranger_cannot_fill_the_log_with_heads_that_are_no_http(
    http: HttpFront, caplog: pytest.LogCaptureFixture
) -> None:
    heads = (
        b"GET /health HTTP/1.1\r\n" + b"A: b\r\n" * 20_000 + b"\r\n",
        b"GET /health HTTP/1.1\r\nHost: a\r\nBad Header: \x00\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 20_000 + b"\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
    )
    with caplog.at_level("INFO"):
        for head in heads:
            with http.dial() as client:
                client.sendall(head)
                assert client.recv(12)[9:] == b"400"
    assert not caplog.records, caplog.text
    with caplog.at_level("INFO"):
        HttpLog().exception("left", exc_info=ClientConnectionResetError("closing transport"))
    assert not caplog.records, caplog.text
    with caplog.at_level("INFO"):
        HttpLog().exception("ours", exc_info=ValueError("a defect"))
    assert "a defect" in caplog.text


@pytest.mark.parametrize(
    "head",
    [
        b"GET /health HTTP/1.1\r\nHost: a\r\nBad Header: \x00\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 20_000 + b"\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
    ids=["header", "length", "long", "http2"],
)
def test_a_head_that_is_no_http_is_refused_in_openais_shape(http: HttpFront, head: bytes) -> None:
    with http.dial() as client:
        client.sendall(head)
        answer = b"".join(iter(lambda: client.recv(1 << 16), b""))
    status, _, rest = answer.partition(b"\r\n")
    headers, _, body = rest.partition(b"\r\n\r\n")
    assert status.endswith(b" 400 Bad Request") and b"application/json" in headers
    error = json.loads(body)["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "invalid")
    assert error["message"].startswith("the request is no HTTP/1.1: ")
    assert len(error["message"]) < 300
