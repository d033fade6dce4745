"""A conversation as JSON bytes: some bytes more than its text, where objects of Python take up to
fifty times as many.

Pure functions; any thread. Invariant: what is read equals what was written, for lone surrogates,
integers of any length and NaN too; msgspec would not keep these.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from tasuki.server.text.call_arguments import read_arguments
from tasuki.server.text.chat_message import ChatMessage, ToolCall

NO_MESSAGES = b"[]"


def written_messages(messages: Iterable[ChatMessage]) -> bytes:
    """Return the messages as one JSON list."""
    listed = [
        (
            message.role,
            message.content,
            message.reasoning,
            [(call.name, call.arguments) for call in message.tool_calls],
        )
        for message in messages
    ]
    text = json.dumps(listed, ensure_ascii=False, separators=(",", ":"))
    return text.encode(errors="surrogatepass")


def written_answer(content: str, reasoning: str, calls: Sequence[tuple[str, str]]) -> bytes:
    """Return an assistant's message as a list of one. calls: names and the texts of arguments,
    which are read when the message is, since that may take long."""
    text = json.dumps([("assistant", content, reasoning, calls)], ensure_ascii=False)
    return text.encode(errors="surrogatepass")


def joined_messages(first: bytes, second: bytes) -> bytes:
    """Return one list of both lists' messages. REQUIRES: written_messages() made both."""
    if NO_MESSAGES in (first, second):
        return second if first == NO_MESSAGES else first
    return b"%b,%b" % (first[:-1], second[1:])


def read_messages(written: bytes) -> tuple[ChatMessage, ...]:
    """Return the messages that were written."""
    listed: list[tuple[str, str, str | None, list[tuple[str, Any]]]]
    listed = json.loads(written.decode(errors="surrogatepass"))
    return tuple(
        ChatMessage(role, content, tuple(_call(*call) for call in calls), reasoning)
        for role, content, reasoning, calls in listed
    )


def _call(name: str, arguments: Any) -> ToolCall:
    """arguments: an object, or the text that a model wrote."""
    return ToolCall(name, read_arguments(arguments) if isinstance(arguments, str) else arguments)
