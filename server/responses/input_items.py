"""`input` of a Responses request, as messages for a chat template: a text, or items.

An error names the position of the wrong value.

Compaction: the item with the summary of a conversation; a client receives it and sends it back. Its
content is encoded with a checksum, not encrypted, because a client may send any other text too. It
therefore needs no key, and every node reads the items of other nodes. Pure functions.

Reasoning: the text of a reasoning item, in plain and in encoded form. `encrypted_content` is the
same text encoded, for clients sending back nothing else. It is no secret, because the item shows
the text too. Pure functions.
"""

import base64
import binascii
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tasuki.server.errors import InvalidField, PromptTooLong
from tasuki.server.openai.request_fields import required
from tasuki.server.pictures.clips import CLIP_PARTS
from tasuki.server.pictures.part_reader import RESPONSE_PARTS, PictureReader, check_part_type
from tasuki.server.text.chat_message import (
    ChatMessage,
    ConversationBuilder,
    MessageContent,
    ToolCall,
)
from tasuki.server.text.chat_renderer import MAX_MESSAGES
from tasuki.server.text.json_reading import holds_too_many_values, read_arguments

from .stored_responses import StoredItems
from .tools import CUSTOM_INPUT, template_name

KIND = "compaction"
SUMMARY_LEAD = "Summary of the conversation before this, of which only some messages are left:\n\n"
"""Text before the summary of a compacted conversation in the prompt."""

_COMPACTION_PREFIX = "tasuki.compaction."
_CHECK_BYTES = 8

_REASONING_PREFIX = "tasuki.text."

_TEXT_PARTS = ("input_text", "output_text", "text")
_REFERENCE = "item_reference"


def read_input(
    value: Any,
    before: Sequence[ChatMessage],
    stored: StoredItems,
    field: str = "input",
    pictures: PictureReader | None = None,
) -> list[ChatMessage]:
    """Return the messages `before`, followed by the messages of a request's input. value: a text,
    or a list of items. stored: items of stored responses, for references by id. field: name of the
    input in errors. pictures: collects the input's pictures; None: refuse them. Raises
    InvalidField, PromptTooLong."""
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
        _ITEMS[kind](item, place, _Reading(builder, pictures))
    builder.end_turn()
    return builder.messages


def _referred(item: dict[str, Any], place: str, stored: StoredItems) -> dict[str, Any]:
    name = required(item, "id", str, place)
    found = stored.get(name)
    if found is None:
        raise InvalidField(f"{place}.id", f"{name!r:.100} is not stored here: send the item itself")
    return found


@dataclass(frozen=True)
class _Reading:
    """The conversation being read. pictures: None refuses them."""

    builder: ConversationBuilder
    pictures: PictureReader | None

    def shown(self, content: Any, place: str) -> MessageContent:
        """Return the text and the pictures of a string or of parts."""
        shown = MessageContent()
        if self.pictures is None or not isinstance(content, list):
            shown.text(_text(content, place))
            return shown
        for index, part in enumerate(content):
            at = f"{place}[{index}]"
            kind = part.get("type") if isinstance(part, dict) else None
            if kind in RESPONSE_PARTS:
                self.pictures.response_part(part, at)
                shown.picture()
                continue
            if kind in CLIP_PARTS:
                shown.clip(self.pictures.clip(part, at))
                continue
            if isinstance(kind, str):
                check_part_type(kind, at)
            shown.text(_part_text(part, at))
        return shown


def _message(item: dict[str, Any], place: str, reading: _Reading) -> None:
    role, builder = item.get("role"), reading.builder
    at = f"{place}.content"
    if role == "user":
        shown = reading.shown(item.get("content"), at)
        builder.user(shown.content, shown.pictures)
        return
    text = _text(item.get("content"), at)
    match role:
        case "assistant":
            builder.content(text)
        case "system" | "developer":
            builder.system(text)
        case _:
            raise InvalidField(f"{place}.role", "must be user, assistant, system or developer")


def _text(content: Any, place: str) -> str:
    """Return the text of an item's content: a string, or a list of text parts. place: position of
    the content, for errors."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidField(place, "must be a string or a list of text parts")
    return "".join(_part_text(part, f"{place}[{index}]") for index, part in enumerate(content))


def _part_text(part: Any, place: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    text = part.get("refusal" if kind == "refusal" else "text") if kind else None
    if kind not in (*_TEXT_PARTS, "refusal") or not isinstance(text, str):
        raise InvalidField(place, f"is of type {kind!r:.60}: only parts of text are served")
    return text


def _call(item: dict[str, Any], place: str, reading: _Reading) -> None:
    arguments = item.get("arguments")
    if not isinstance(arguments, str):
        raise InvalidField(f"{place}.arguments", "must be a string of JSON")
    if holds_too_many_values(arguments.encode(errors="surrogatepass")):
        raise InvalidField(f"{place}.arguments", "holds too many values")
    reading.builder.call(ToolCall(_name(item, place), read_arguments(arguments)))


def _custom_call(item: dict[str, Any], place: str, reading: _Reading) -> None:
    text = required(item, "input", str, place)
    reading.builder.call(ToolCall(_name(item, place), {CUSTOM_INPUT: text}))


def _name(item: dict[str, Any], place: str) -> str:
    name, namespace = item.get("name"), item.get("namespace")
    if not isinstance(name, str) or not isinstance(namespace, str | None):
        raise InvalidField(f"{place}.name", "must be a string, and so must a namespace")
    return template_name(name, namespace)


def _output(item: dict[str, Any], place: str, reading: _Reading) -> None:
    output = item.get("output")
    if isinstance(output, dict):
        # Some clients send a tool's output unchanged.
        output = json.dumps(output, ensure_ascii=False)
    shown = reading.shown(output, f"{place}.output")
    reading.builder.tool(shown.content, shown.pictures)


def _reasoning(item: dict[str, Any], place: str, reading: _Reading) -> None:
    reading.builder.reasoning(read_reasoning(item, place))


def _compaction(item: dict[str, Any], place: str, reading: _Reading) -> None:
    reading.builder.user(read_compaction(item, place))


_ITEMS: dict[str, Callable[[dict[str, Any], str, _Reading], None]] = {
    "message": _message,
    "function_call": _call,
    "function_call_output": _output,
    "custom_tool_call": _custom_call,
    "custom_tool_call_output": _output,
    "reasoning": _reasoning,
    KIND: _compaction,
}


def compaction_item(item_id: str, summary: str) -> dict[str, Any]:
    """Return the compaction item with this id and the summary of a conversation."""
    text = summary.encode(errors="replace")
    encoded = base64.b64encode(_check(text) + text).decode()
    return {"id": item_id, "type": KIND, "encrypted_content": _COMPACTION_PREFIX + encoded}


def read_compaction(item: dict[str, Any], place: str) -> str:
    """Return the summary in a compaction item sent by a client, after the text SUMMARY_LEAD. Raises
    InvalidField for a damaged item, and for one of another service."""
    field = f"{place}.encrypted_content"
    content = item.get("encrypted_content")
    if not isinstance(content, str) or not content.startswith(_COMPACTION_PREFIX):
        raise InvalidField(field, "was not made by tasuki: send the conversation itself")
    try:
        found = base64.b64decode(content.removeprefix(_COMPACTION_PREFIX), validate=True)
        text = found[_CHECK_BYTES:].decode()
    except (binascii.Error, ValueError) as error:
        raise InvalidField(field, "is not as it was sent") from error
    if found[:_CHECK_BYTES] != _check(found[_CHECK_BYTES:]):
        raise InvalidField(field, "is not as it was sent")
    return SUMMARY_LEAD + text


def _check(text: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=_CHECK_BYTES).digest()


def carried(text: str) -> str:
    return _REASONING_PREFIX + base64.b64encode(text.encode(errors="replace")).decode()


def read_reasoning(item: dict[str, Any], place: str) -> str:
    """Return the text of a reasoning item sent by a client: the first of its plain text, its
    encoded text and its summary. An item of another model has only the summary. Raises
    InvalidField."""
    shown = _texts(item.get("content"), f"{place}.content")
    if shown:
        return shown
    content = item.get("encrypted_content")
    if isinstance(content, str) and content.startswith(_REASONING_PREFIX):
        try:
            return base64.b64decode(content.removeprefix(_REASONING_PREFIX), validate=True).decode()
        except (binascii.Error, UnicodeDecodeError) as error:
            raise InvalidField(f"{place}.encrypted_content", "is not as it was sent") from error
    return _texts(item.get("summary"), f"{place}.summary")


def _texts(parts: Any, place: str) -> str:
    if parts is None:
        return ""
    if not isinstance(parts, list):
        raise InvalidField(place, "must be a list of parts")
    texts = []
    for part in parts:
        text = part.get("text") if isinstance(part, dict) else None
        if not isinstance(text, str):
            raise InvalidField(place, "must be a list of parts with a text")
        texts.append(text)
    return "\n\n".join(texts)
