"""The content of a message: a text, or blocks of text, thinking, tool calls and their results.

Pure functions; an error names the place of the wrong value. What only templates for images,
documents or Anthropic's own tools could show is refused by its type.
"""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from tasuki.server.errors import InvalidField
from tasuki.server.fields.messages import ABSENT
from tasuki.server.openai.request_fields import is_among
from tasuki.server.text.chat_message import ToolCall

from .thinking import read_thinking

Read = TypeVar("Read")


def blocks_of(content: Any, place: str) -> list[dict[str, Any]]:
    """The content as blocks, each with a type."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise InvalidField(place, "must be a string or a list of blocks")
    for index, block in enumerate(content):
        if not isinstance(block, dict) or not isinstance(block.get("type"), str):
            raise InvalidField(f"{place}[{index}]", "must be an object with a type")
    return content


def read_blocks(
    content: Any, place: str, readers: dict[str, Callable[[dict[str, Any], str], Read]]
) -> Iterator[tuple[str, Read]]:
    """Each block's type, and what its reader makes of it. Raises InvalidField where a type has no
    reader."""
    for index, block in enumerate(blocks_of(content, place)):
        kind, at = block["type"], f"{place}[{index}]"
        if kind not in readers:
            known = ", ".join(readers)
            raise InvalidField(at, f"is of type {kind:.40}, which is not served here: use {known}")
        yield kind, readers[kind](block, at)


def read_text(block: dict[str, Any], place: str) -> str:
    text = block.get("text")
    if not isinstance(text, str):
        raise InvalidField(f"{place}.text", "must be a string")
    if not is_among(block.get("citations"), ABSENT):
        raise InvalidField(f"{place}.citations", "are not shown to the model: leave them out")
    return text


def texts_of(content: Any, place: str) -> str:
    """Of content that may hold nothing but text."""
    return "".join(text for _, text in read_blocks(content, place, {"text": read_text}))


def read_tool_use(block: dict[str, Any], place: str) -> ToolCall:
    name, arguments = block.get("name"), block.get("input")
    if not isinstance(name, str):
        raise InvalidField(f"{place}.name", "must be a string")
    if not isinstance(arguments, dict):
        raise InvalidField(f"{place}.input", "must be an object")
    return ToolCall(name, arguments)


def read_tool_result(block: dict[str, Any], place: str) -> str:
    """Templates have no place for `is_error`: the text says what went wrong."""
    if not isinstance(block.get("tool_use_id"), str):
        raise InvalidField(f"{place}.tool_use_id", "must be a string")
    content = block.get("content")
    return "" if content is None else texts_of(content, f"{place}.content")


def read_thinking_block(block: dict[str, Any], place: str) -> str:
    thinking, signature = block.get("thinking"), block.get("signature")
    if not isinstance(thinking, str):
        raise InvalidField(f"{place}.thinking", "must be a string")
    return read_thinking(thinking, signature if isinstance(signature, str) else "")


USER_BLOCKS: dict[str, Callable[[dict[str, Any], str], str]] = {
    "text": read_text,
    "tool_result": read_tool_result,
}
ASSISTANT_BLOCKS: dict[str, Callable[[dict[str, Any], str], str | ToolCall]] = {
    "text": read_text,
    "thinking": read_thinking_block,
    "tool_use": read_tool_use,
}
