"""`system` and `messages` of a Messages request, as a chat template takes them.

Pure functions; an error names the place of the wrong value.
"""

import re
from dataclasses import dataclass
from typing import Any

from tasuki.server.errors import InvalidField, PromptTooLong
from tasuki.server.openai.request_fields import RequestFields
from tasuki.server.replies.conversation_builder import ConversationBuilder
from tasuki.server.text.chat_message import ChatMessage, ToolCall
from tasuki.server.text.chat_renderer import MAX_MESSAGES

from .content_blocks import (
    ASSISTANT_BLOCKS,
    USER_BLOCKS,
    blocks_of,
    read_blocks,
    read_text,
    texts_of,
)

_MAX_BREAKPOINTS = 4
# Claude Code's word to Anthropic about who pays. Its hash differs by the request, so that nothing
# behind it would be found in the cache again.
_BILLING_LINE = re.compile(r"\Ax-anthropic-billing-header:[^\n]*\n?")


@dataclass(frozen=True)
class Conversation:
    """breakpoints: counts of messages at whose end the client asks for a checkpoint."""

    messages: tuple[ChatMessage, ...]
    breakpoints: tuple[int, ...]


def read_conversation(fields: RequestFields) -> Conversation:
    """Raises InvalidField, PromptTooLong."""
    messages = fields.items("messages")
    if not messages:
        raise InvalidField("messages", "is empty: send at least one message")
    if len(messages) > MAX_MESSAGES:
        raise PromptTooLong(
            f"messages has {len(messages)}: send at most {MAX_MESSAGES}, or join some",
            "messages",
        )
    reader = _Reader()
    if fields.get("system") is not None:
        reader.instructions(fields.get("system"), "system")
    for index, message in enumerate(messages):
        place = f"messages[{index}]"
        role = message.get("role") if isinstance(message, dict) else None
        if not isinstance(role, str) or role not in _ROLES:
            raise InvalidField(place, f"must be an object with a role: {', '.join(_ROLES)}")
        _ROLES[role](reader, message.get("content"), f"{place}.content")
    if reader.messages[-1].role == "assistant":
        raise InvalidField(
            "messages", "must not end with an assistant's: an answer cannot be continued here"
        )
    if _asks_for_cache(fields.get("cache_control"), "cache_control"):
        reader.breakpoint_here()
    return Conversation(tuple(reader.messages), tuple(reader.breakpoints))


class _Reader:
    """Adds one message after the other. A message may become several of the template's, since each
    result of a tool is one there."""

    def __init__(self) -> None:
        self._builder = ConversationBuilder()
        self.breakpoints: dict[int, None] = {}
        self._asked = 0

    @property
    def messages(self) -> list[ChatMessage]:
        return self._builder.messages

    def instructions(self, content: Any, place: str) -> None:
        """Those before the conversation."""
        texts = (text for _, text in read_blocks(content, place, {"text": read_text}))
        self._builder.system("".join(_BILLING_LINE.sub("", text) for text in texts))
        self._marks(content, place)

    def system(self, content: Any, place: str) -> None:
        self._builder.system(texts_of(content, place))
        self._marks(content, place)

    def user(self, content: Any, place: str) -> None:
        texts: list[str] = []
        for kind, text in read_blocks(content, place, USER_BLOCKS):
            if kind == "text":
                texts.append(text)
                continue
            self._said(texts)
            self._builder.tool(text)
        if texts or not blocks_of(content, place):
            self._said(texts or [""])
        self._marks(content, place)

    def assistant(self, content: Any, place: str) -> None:
        thoughts: list[str] = []
        texts: list[str] = []
        calls: list[ToolCall] = []
        for kind, read in read_blocks(content, place, ASSISTANT_BLOCKS):
            if isinstance(read, ToolCall):
                calls.append(read)
            else:
                (thoughts if kind == "thinking" else texts).append(read)
        self._builder.reasoning("".join(thoughts))
        self._builder.content("".join(texts))
        for call in calls:
            self._builder.call(call)
        self._builder.end_turn()
        self._marks(content, place)

    def breakpoint_here(self) -> None:
        self.breakpoints[len(self.messages)] = None

    def _said(self, texts: list[str]) -> None:
        if texts:
            self._builder.user("".join(texts))
            texts.clear()

    def _marks(self, content: Any, place: str) -> None:
        """A checkpoint is at a message's end, wherever in it the client asked for one."""
        for index, block in enumerate(blocks_of(content, place)):
            if _asks_for_cache(block.get("cache_control"), f"{place}[{index}].cache_control"):
                self._asked += 1
                self.breakpoint_here()
        if self._asked > _MAX_BREAKPOINTS:
            raise InvalidField(
                "cache_control", f"is in {self._asked} blocks: a maximum of {_MAX_BREAKPOINTS} may"
            )


def _asks_for_cache(control: Any, place: str) -> bool:
    """`ttl` is not looked at: what is cached stays for as long as there is room."""
    if control is None:
        return False
    if not isinstance(control, dict) or control.get("type") != "ephemeral":
        raise InvalidField(place, 'must be {"type": "ephemeral"}')
    return True


_ROLES = {"user": _Reader.user, "assistant": _Reader.assistant, "system": _Reader.system}
