"""Items as a conversation keeps them: each with an id, a type and parts of content.

Pure functions; any thread. An error names the place of the wrong value.
"""

from collections.abc import Iterator, Sequence
from typing import Any
from uuid import uuid4

import msgspec

from tasuki.server.errors import InvalidField
from tasuki.server.responses.input_items import read_input
from tasuki.server.responses.stored_items import StoredItems

from .conversation import ConversationItem

_PREFIXES = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "reasoning": "rs",
    "compaction": "cmp",
}
_REFERENCE = "item_reference"


class _Outputs(msgspec.Struct):
    output: list[msgspec.Raw]


class _Named(msgspec.Struct):
    id: str


def checked_items(value: Any, stored: StoredItems) -> tuple[ConversationItem, ...]:
    """Return new items of a list that a client sent. Raises InvalidField, PromptTooLong."""
    if not isinstance(value, list):
        raise InvalidField("items", "must be a list of items")
    read_input(value, (), stored, "items")
    return given_items(value, stored)


def given_items(value: Any, stored: StoredItems) -> tuple[ConversationItem, ...]:
    """Return a request's input as new items. REQUIRES: read_input() took it."""
    if isinstance(value, str):
        value = [{"role": "user", "content": value}]
    return tuple(_kept(_resolved(item, stored)) for item in value)


def output_items(body: bytes) -> Iterator[ConversationItem]:
    """Return a response's output, with its own ids. body: of a stored response."""
    for raw in msgspec.json.decode(body, type=_Outputs).output:
        item = bytes(raw)
        yield ConversationItem(msgspec.json.decode(item, type=_Named).id, item)


def _resolved(item: dict[str, Any], stored: StoredItems) -> dict[str, Any]:
    if item.get("type") != _REFERENCE:
        return item
    found = stored.get(item["id"])
    assert found is not None, "read_input() found it"
    return found


def _kept(item: dict[str, Any]) -> ConversationItem:
    kind = item.get("type") or "message"
    name = f"{_PREFIXES[kind]}_{uuid4().hex}"
    status = {} if kind in ("reasoning", "compaction") else {"status": "completed"}
    kept = {**status, **item, "id": name, "type": kind}
    if kind == "message":
        kept["content"] = _parts(item)
    return ConversationItem(name, msgspec.json.encode(kept))


def _parts(item: dict[str, Any]) -> Sequence[Any]:
    content = item["content"]
    if not isinstance(content, str):
        parts: Sequence[Any] = content
        return parts
    if item["role"] == "assistant":
        return [{"type": "output_text", "text": content, "annotations": [], "logprobs": []}]
    return [{"type": "input_text", "text": content}]
