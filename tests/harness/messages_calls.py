"""Anthropic's Messages as plain HTTP: events of a stream, and the message that they make."""

import json
from typing import Any

from tests.harness.http_calls import Reply

ANTHROPIC = {"anthropic-version": "2023-06-01"}


def named_events(reply: Reply) -> list[dict[str, Any]]:
    """Of a stream whose events are named by their type; comments are left out."""
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
    """What a client that follows the events has at their end. Each event must be in its place."""
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
