"""`input` of a Responses request, as a chat template takes it: a text, or items.

An error names the place of the wrong value.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any

from tasuki.server.errors import InvalidField, PromptTooLong
from tasuki.server.replies.conversation_builder import ConversationBuilder
from tasuki.server.text.call_arguments import read_arguments
from tasuki.server.text.chat_message import ChatMessage, ToolCall
from tasuki.server.text.chat_renderer import MAX_MESSAGES
from tasuki.server.text.json_bounds import holds_too_many_values

from .carried.compaction_item import KIND as COMPACTION
from .carried.compaction_item import read_compaction
from .carried.reasoning_text import read_reasoning
from .stored_items import StoredItems
from .tools import CUSTOM_INPUT, template_name

_TEXT_PARTS = ("input_text", "output_text", "text")
_REFERENCE = "item_reference"


def read_input(
    value: Any, before: Sequence[ChatMessage], stored: StoredItems, field: str = "input"
) -> list[ChatMessage]:
    """Return the conversation: what stands before, and what the input adds. stored: items that it
    may name. field: in errors. Raises InvalidField, PromptTooLong."""
    if isinstance(value, str):
        return [*before, ChatMessage("user", value)]
    if not isinstance(value, list):
        raise InvalidField(field, "must be a string or a list of items")
    if len(value) > MAX_MESSAGES:
        raise PromptTooLong(f"{field} has {len(value)} items: send at most {MAX_MESSAGES}", field)
    builder = ConversationBuilder(before)
    for index, item in enumerate(value):
        place = f"{field}[{index}]"
        if not isinstance(item, dict):
            raise InvalidField(place, "must be an object")
        # The type of a message may be left out.
        kind = item.get("type")
        if kind is None and "role" in item:
            kind = "message"
        if kind == _REFERENCE:
            item = _referred(item, place, stored)
            kind = item["type"]
        if not isinstance(kind, str) or kind not in _ITEMS:
            known = ", ".join((*_ITEMS, _REFERENCE))
            raise InvalidField(place, f"is of type {kind!r:.60}, which is not served: use {known}")
        _ITEMS[kind](item, place, builder)
    builder.end_turn()
    return builder.messages


def _referred(item: dict[str, Any], place: str, stored: StoredItems) -> dict[str, Any]:
    name = item.get("id")
    if not isinstance(name, str):
        raise InvalidField(f"{place}.id", "must be a string")
    found = stored.get(name)
    if found is None:
        raise InvalidField(f"{place}.id", f"{name!r:.100} is not stored here: send the item itself")
    return found


def _message(item: dict[str, Any], place: str, builder: ConversationBuilder) -> None:
    role = item.get("role")
    text = _text(item.get("content"), f"{place}.content")
    match role:
        case "user":
            builder.user(text)
        case "assistant":
            builder.content(text)
        case "system" | "developer":
            builder.system(text)
        case _:
            raise InvalidField(f"{place}.role", "must be user, assistant, system or developer")


def _text(content: Any, place: str) -> str:
    """A string, or parts of text."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidField(place, "must be a string or a list of text parts")
    texts = []
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        text = part.get("refusal" if kind == "refusal" else "text") if kind else None
        if kind not in (*_TEXT_PARTS, "refusal") or not isinstance(text, str):
            raise InvalidField(
                f"{place}[{index}]", f"is of type {kind!r:.60}: only parts of text are served"
            )
        texts.append(text)
    return "".join(texts)


def _call(item: dict[str, Any], place: str, builder: ConversationBuilder) -> None:
    arguments = item.get("arguments")
    if not isinstance(arguments, str):
        raise InvalidField(f"{place}.arguments", "must be a string of JSON")
    if holds_too_many_values(arguments.encode(errors="surrogatepass")):
        raise InvalidField(f"{place}.arguments", "holds too many values")
    builder.call(ToolCall(_name(item, place), read_arguments(arguments)))


def _custom_call(item: dict[str, Any], place: str, builder: ConversationBuilder) -> None:
    text = item.get("input")
    if not isinstance(text, str):
        raise InvalidField(f"{place}.input", "must be a string")
    builder.call(ToolCall(_name(item, place), {CUSTOM_INPUT: text}))


def _name(item: dict[str, Any], place: str) -> str:
    name, namespace = item.get("name"), item.get("namespace")
    if not isinstance(name, str) or not isinstance(namespace, str | None):
        raise InvalidField(f"{place}.name", "must be a string, and so must a namespace")
    return template_name(name, namespace)


def _output(item: dict[str, Any], place: str, builder: ConversationBuilder) -> None:
    output = item.get("output")
    if isinstance(output, dict):
        # Some clients send what their tool gave as it is.
        output = json.dumps(output, ensure_ascii=False)
    builder.tool(_text(output, f"{place}.output"))


def _reasoning(item: dict[str, Any], place: str, builder: ConversationBuilder) -> None:
    builder.reasoning(read_reasoning(item, place))


def _compaction(item: dict[str, Any], place: str, builder: ConversationBuilder) -> None:
    builder.user(read_compaction(item, place))


_ITEMS: dict[str, Callable[[dict[str, Any], str, ConversationBuilder], None]] = {
    "message": _message,
    "function_call": _call,
    "function_call_output": _output,
    "custom_tool_call": _custom_call,
    "custom_tool_call_output": _output,
    "reasoning": _reasoning,
    COMPACTION: _compaction,
}
