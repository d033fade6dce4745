"""Tests of a request too large for the model: the field named in the error, and the error's
source."""

import socket
from http.client import HTTPResponse

import pytest

from tasuki.engine.messages import Submit
from tasuki.utils.program import package_version
from tests.harness.http_fixtures import HttpFront
from tests.harness.waiting import HANG_SECONDS

CHAT, TEXT, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
USER = {"messages": [{"role": "user", "content": "it was"}]}
LONG = "x" * 9000
TRANSFER_ID = 1000
"""Tokens of the front's model for a prompt and its answer."""


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        (CHAT, {**USER, "max_tokens": TRANSFER_ID + 1}, "max_tokens"),
        (CHAT, {**USER, "max_completion_tokens": TRANSFER_ID + 1}, "max_completion_tokens"),
        (CHAT, {**USER, "max_completion_tokens": 5000, "max_tokens": 5}, "max_completion_tokens"),
        (CHAT, {"messages": [{"role": "user", "content": LONG}]}, "messages"),
        (CHAT, {"messages": [{"role": "user", "content": LONG}], "max_tokens": 9000}, "messages"),
        (TEXT, {"prompt": "it was", "max_tokens": TRANSFER_ID + 1}, "max_tokens"),
        (TEXT, {"prompt": LONG, "max_tokens": 5}, "prompt"),
    ],
)
def test_the_field_that_is_too_large_is_the_param(
    http: HttpFront, path: str, body: dict[str, object], field: str, stream: bool
) -> None:
    reply = http.post(path, {**body, "stream": stream})
    assert reply.refusal == (400, "context_length_exceeded")
    assert reply.error["param"] == field and reply.error["message"].startswith(field)
    assert not http.engine.of(Submit)


def test_a_response_s_input_is_named_and_its_answer_is_shortened(http: HttpFront) -> None:
    reply = http.post(RESPONSES, {"input": LONG})
    assert reply.refusal == (400, "context_length_exceeded")
    assert reply.error["param"] == "input" and reply.error["message"].startswith("input has")
    shortened = http.post(RESPONSES, {"input": "it was", "max_output_tokens": TRANSFER_ID + 1})
    assert shortened.status == 200


def test_the_most_that_is_named_is_taken(http: HttpFront) -> None:
    refused = http.post(CHAT, {**USER, "max_tokens": TRANSFER_ID + 1}).error["message"]
    most = int(refused.partition("at most ")[2].split()[0])
    assert http.post(CHAT, {**USER, "max_tokens": most}).status == 200
    assert http.post(CHAT, {**USER, "max_tokens": most + 1}).status == 400


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/health"), ("GET", "/version"), ("GET", "/nowhere"), ("POST", CHAT), ("PUT", CHAT)],
)
def test_answers_name_tasuki_as_the_server(http: HttpFront, method: str, path: str) -> None:
    reply = http.ask(method, path)
    assert reply.headers["Server"] == f"tasuki/{package_version()}"


def test_streams_name_it_and_so_does_what_answers_no_http(http: HttpFront) -> None:
    reply = http.post(CHAT, {**USER, "stream": True, "max_tokens": 2})
    assert reply.headers["Server"] == f"tasuki/{package_version()}"
    host, _, port = http.server.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=HANG_SECONDS) as plain:
        plain.sendall(b"no http at all\r\n\r\n")
        answer = answer_of(plain)
    assert answer.getheader("Server") == f"tasuki/{package_version()}"


def answer_of(connection: socket.socket) -> HTTPResponse:
    answer = HTTPResponse(connection)
    answer.begin()
    answer.read()
    return answer
