"""HTTP calls returning rejections as ordinary replies.

Also for Anthropic's Messages: the events of a stream, and the message made from them.
"""

import http.client
import json
from dataclasses import dataclass
from typing import Any

from tests.harness.waiting import HANG_SECONDS

JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The error object of a rejection in OpenAI's form."""
        found: dict[str, Any] = self.json["error"]
        return found

    @property
    def refusal(self) -> tuple[int, str]:
        """The HTTP status of a rejection, and its error's code."""
        return self.status, self.error["code"]

    @property
    def events(self) -> list[Any]:
        """The JSON events of a stream. It must end with [DONE]."""
        lines = self.body.decode().split("\n\n")
        assert lines[-2:] == ["data: [DONE]", ""], lines[-3:]
        return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


def connect(address: str) -> http.client.HTTPConnection:
    """Return an HTTP connection. address: HOST:PORT."""
    return http.client.HTTPConnection(address, timeout=HANG_SECONDS)


def ask(
    address: str,
    method: str,
    path: str,
    body: object = None,
    headers: dict[str, str] | None = None,
) -> Reply:
    """Send a request and return its reply. address: HOST:PORT. body: bytes unchanged, None for
    none, other values as JSON."""
    connection = connect(address)
    try:
        content = body if isinstance(body, bytes | None) else json.dumps(body)
        connection.request(method, path, content, {**JSON, **(headers or {})})
        response = connection.getresponse()
        return Reply(response.status, dict(response.headers), response.read())
    finally:
        connection.close()


def fetched(address: str, path: str) -> bytes:
    """Send a GET request, and return the reply's body. Its status must be 200."""
    reply = ask(address, "GET", path)
    assert reply.status == 200, reply
    return reply.body


ANTHROPIC = {"anthropic-version": "2023-06-01"}


def named_events(reply: Reply) -> list[dict[str, Any]]:
    """Return the events of a stream, each named by its type. Comments are left out."""
    assert reply.status == 200, reply
    found = []
    *events, end = reply.body.decode().split("\n\n")
    assert end == "", end
    for text in events:
        if text.startswith(":"):
            continue
        name, data = text.split("\n")
        body = json.loads(data.removeprefix("data: "))
        assert name == f"event: {body['type']}", text
        found.append(body)
    return found


def message_of(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the message a client of Anthropic's Messages has after the events. Each event must be
    in its place."""
    first, *rest = [event for event in events if event["type"] != "ping"]
    message: dict[str, Any] = first["message"]
    assert first["type"] == "message_start" and message["content"] == []
    *blocks, delta, stop = rest
    assert (delta["type"], stop) == ("message_delta", {"type": "message_stop"})
    is_open = False
    inputs = ""
    for event in blocks:
        kind, index = event["type"], event["index"]
        if kind == "content_block_start":
            assert not is_open and index == len(message["content"])
            is_open, inputs = True, ""
            message["content"].append(event["content_block"])
            continue
        assert is_open and index == len(message["content"]) - 1
        block = message["content"][-1]
        if kind == "content_block_stop":
            is_open = False
            if block["type"] == "tool_use":
                block["input"] = json.loads(inputs or "{}")
            continue
        assert kind == "content_block_delta", event
        match event["delta"]:
            case {"type": "text_delta", "text": text}:
                block["text"] += text
            case {"type": "thinking_delta", "thinking": text}:
                block["thinking"] += text
            case {"type": "signature_delta", "signature": text}:
                block["signature"] += text
            case {"type": "input_json_delta", "partial_json": text}:
                inputs += text
            case other:
                raise AssertionError(other)
    assert not is_open
    return {**message, **delta["delta"], "usage": {**message["usage"], **delta["usage"]}}
