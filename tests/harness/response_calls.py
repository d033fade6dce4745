"""OpenAI's Responses as plain HTTP: events of a stream, and the response that they make."""

from typing import Any

from tests.harness.http_calls import Reply
from tests.harness.messages_calls import named_events

_LAST = ("response.completed", "response.incomplete", "response.failed")
_DELTAS = {
    "response.output_text": "text",
    "response.reasoning_text": "text",
    "response.function_call_arguments": "arguments",
    "response.custom_tool_call_input": "input",
}


def response_of(reply: Reply) -> dict[str, Any]:
    """What a client that follows the events has at their end. Each event must be in its place."""
    events = named_events(reply)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    created, *rest, last = events
    # One in the background waits before it is begun.
    waits = rest[0]["type"] == "response.queued"
    statuses = ["queued", "queued", "in_progress"] if waits else ["in_progress", "in_progress"]
    opened = [created, *rest[: len(statuses) - 1]]
    assert [event["response"]["status"] for event in opened] == statuses
    assert (created["type"], opened[-1]["type"]) == ("response.created", "response.in_progress")
    del rest[: len(statuses) - 1]
    assert last["type"] in _LAST
    response: dict[str, Any] = last["response"]
    assert created["response"]["id"] == response["id"]
    items = _items(rest)
    assert items == response["output"]
    return response


def _items(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    item: dict[str, Any] | None = None
    text = ""
    for event in events:
        kind = event["type"]
        assert event["output_index"] == len(items), event
        if kind == "response.output_item.added":
            assert item is None and event["item"]["status"] == "in_progress"
            item, text = event["item"], ""
            continue
        assert item is not None, event
        if kind == "response.output_item.done":
            assert event["item"]["id"] == item["id"]
            items.append(event["item"])
            item = None
            continue
        assert event["item_id"] == item["id"]
        if kind.endswith(".delta"):
            assert kind.removesuffix(".delta") in _DELTAS
            text += event["delta"]
        elif kind.removesuffix(".done") in _DELTAS:
            assert event[_DELTAS[kind.removesuffix(".done")]] == text
        else:
            assert kind in ("response.content_part.added", "response.content_part.done"), kind
            assert event["part"]["text"] == text
    assert item is None
    return items
