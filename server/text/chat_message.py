"""One message of a conversation, for a chat template. Plain values, any thread."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

ROLES = ("system", "user", "assistant", "tool")


class ChatTemplateError(ValueError):
    """The messages cannot be rendered; the text is the cause and the mend."""


@dataclass(frozen=True)
class ToolCall:
    """A function that the model wants its caller to run. arguments: name to JSON value."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class ChatMessage:
    """tool_calls, reasoning: of an assistant's message only. reasoning None: nothing is known of
    it, and a template may look for it in the content."""

    role: str
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning: str | None = None
