"""`system` and `messages` of a Messages request, as a chat template takes them, thinking included.

Pure functions; an error names the position of the wrong value.

Content: a text, or blocks of text, thinking, tool calls and tool results. Documents and blocks of
Anthropic's own tools are rejected by type, and so are pictures without a PictureReader.

Thinking: the request's settings, and the thinking blocks sent back by the client. A thinking block
carries a signature, and clients send both back. If the thinking text is not shown to the client,
the signature contains the text. A returned turn therefore has the same text. The signature is
encoded, not encrypted: a client may read it.
"""

import base64
import binascii
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from tasuki.server.errors import InvalidField
from tasuki.server.openai.messages import message_items
from tasuki.server.openai.request_fields import RequestFields, is_among, required
from tasuki.server.openapi.anthropic_fields import ABSENT, DISPLAYS
from tasuki.server.pictures.clips import CLIP_PARTS
from tasuki.server.pictures.part_reader import MESSAGE_BLOCKS, PictureReader, check_part_type
from tasuki.server.text.chat_message import (
    ChatMessage,
    ConversationBuilder,
    MessageContent,
    ToolCall,
)
from tasuki.server.text.chat_renderer import effort_of_budget

_CARRIED = "tasuki.text."
_SIGNED = "tasuki.sha256."


@dataclass(frozen=True)
class ThinkingChoice:
    """The thinking settings of one request. enabled: the chat template's switch for thinking; None:
    the template's default. hidden: True if the reply has no thinking blocks. shown: True if
    thinking blocks contain their text. effort: the template's effort word for a small budget, used
    if the request sets no other effort; None: the template's default. budget: largest number of
    thinking tokens; None: no limit."""

    enabled: bool | None = None
    hidden: bool = False
    shown: bool = True
    effort: str | None = None
    budget: int | None = None


def read_thinking_choice(fields: RequestFields, *, hides_unasked: bool) -> ThinkingChoice:
    """Return the thinking settings of a request. hides_unasked: disable thinking if the request
    does not ask for it, and hide any thinking the template writes anyway. Thinking disabled by the
    request is hidden too. Raises InvalidField."""
    choice = fields.fields("thinking")
    kind, display = choice.text("type"), choice.text("display")
    if display is not None and display not in DISPLAYS:
        raise InvalidField("thinking.display", f"must be one of {', '.join(DISPLAYS)}")
    if kind in ("disabled", "between_tools"):
        return ThinkingChoice(enabled=False, hidden=hides_unasked)
    if kind not in (None, "adaptive", "enabled"):
        raise InvalidField("thinking.type", "must be adaptive, enabled or disabled")
    budget = choice.integer("budget_tokens")
    effort = effort_of_budget("thinking.budget_tokens", budget)
    if kind is None and hides_unasked:
        return ThinkingChoice(enabled=False, hidden=True)
    enabled = None if kind is None else True
    return ThinkingChoice(enabled, shown=display != "omitted", effort=effort, budget=budget)


def signature_of(thinking: str, choice: ThinkingChoice) -> str:
    if choice.shown:
        return _SIGNED + hashlib.sha256(thinking.encode(errors="replace")).hexdigest()
    return _CARRIED + base64.b64encode(thinking.encode(errors="replace")).decode()


def read_thinking(thinking: str, signature: str) -> str:
    """Return the text of a thinking block sent back by the client. If `thinking` is empty, decode
    the text from the signature. Return an empty text if neither contains it. Raises InvalidField
    for a damaged signature."""
    if thinking or not signature.startswith(_CARRIED):
        return thinking
    try:
        carried = base64.b64decode(signature.removeprefix(_CARRIED), validate=True)
        return carried.decode()
    except (binascii.Error, UnicodeDecodeError) as error:
        # Clients leave thinking out and ask again when they read these words.
        raise InvalidField(
            "signature", "is not as it was sent: invalid signature in thinking block"
        ) from error


Read = TypeVar("Read")
Readers = Mapping[str, Callable[[dict[str, Any], str], Read]]
"""Reader of each type of block. Arguments: the block, its place."""


def blocks_of(content: Any, place: str) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the blocks of a message, each with its place. A string is one text block. Raises
    InvalidField if the content is no list, or a block has no type."""
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise InvalidField(place, "must be a string or a list of blocks")
    for index, block in enumerate(content):
        at = f"{place}[{index}]"
        if not isinstance(block, dict) or not isinstance(block.get("type"), str):
            raise InvalidField(at, "must be an object with a type")
        yield block, at


def read_block(block: dict[str, Any], place: str, readers: Readers[Read]) -> Read:
    """Return the result of the reader of a block's type. Raises InvalidField for a type without
    one."""
    kind = block["type"]
    if kind not in readers:
        check_part_type(kind, place)
        known = ", ".join(readers)
        raise InvalidField(place, f"is of type {kind:.40}, which is not served here: use {known}")
    return readers[kind](block, place)


def read_text(block: dict[str, Any], place: str) -> str:
    text = required(block, "text", str, place)
    if not is_among(block.get("citations"), ABSENT):
        raise InvalidField(f"{place}.citations", "are not shown to the model: leave them out")
    return text


def read_tool_use(block: dict[str, Any], place: str) -> ToolCall:
    return ToolCall(required(block, "name", str, place), required(block, "input", dict, place))


def read_thinking_block(block: dict[str, Any], place: str) -> str:
    thinking, signature = required(block, "thinking", str, place), block.get("signature")
    return read_thinking(thinking, signature if isinstance(signature, str) else "")


_TEXTS: Readers[str] = {"text": read_text}
ASSISTANT_BLOCKS: Readers[str | ToolCall] = {
    "text": read_text,
    "thinking": read_thinking_block,
    "tool_use": read_tool_use,
}


_MAX_BREAKPOINTS = 4
# Claude Code's line for Anthropic about the payer. Its hash differs in each request, so the cache
# would hold nothing after it.
_BILLING_LINE = re.compile(r"\Ax-anthropic-billing-header:[^\n]*\n?")


@dataclass(frozen=True)
class Conversation:
    """The messages of a request. breakpoints: counts of messages; the client asks for a checkpoint
    after the first N messages, for each count N."""

    messages: tuple[ChatMessage, ...]
    breakpoints: tuple[int, ...]


def read_conversation(fields: RequestFields, pictures: PictureReader | None = None) -> Conversation:
    """Return the messages of a request, `system` included, and the requested checkpoints. pictures:
    collects the pictures; None: refuse them. Raises InvalidField, also if an assistant's message is
    last; PromptTooLong."""
    messages = message_items(fields)
    reader = _Reader(pictures)
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
    """A reader of a request's messages, one after the other. One message of Anthropic's API may
    become several template messages, because a template takes each tool result as its own message.
    A list of blocks is walked once."""

    def __init__(self, pictures: PictureReader | None) -> None:
        self._builder = ConversationBuilder()
        self._pictures = pictures
        self._shown = MessageContent()
        self._result_blocks: dict[str, Callable[[dict[str, Any], str], None]] = {
            "text": self._add_text
        }
        if pictures is not None:
            self._result_blocks |= dict.fromkeys(MESSAGE_BLOCKS, self._add_picture)
            self._result_blocks |= dict.fromkeys(CLIP_PARTS, self._add_clip)
        self._user_blocks = {**self._result_blocks, "tool_result": self._add_tool_result}
        self.breakpoints: dict[int, None] = {}
        self._asked = self._answered = 0

    @property
    def messages(self) -> list[ChatMessage]:
        return self._builder.messages

    def instructions(self, content: Any, place: str) -> None:
        """Add the request's `system` content before the conversation."""
        texts = self._read(content, place, _TEXTS)
        self._builder.system("".join(_BILLING_LINE.sub("", text) for _, text in texts))
        self._mark()

    def system(self, content: Any, place: str) -> None:
        self._builder.system("".join(text for _, text in self._read(content, place, _TEXTS)))
        self._mark()

    def user(self, content: Any, place: str) -> None:
        if not self._read(content, place, self._user_blocks):
            self._shown.text("")
        self._say()
        self._mark()

    def _add_text(self, block: dict[str, Any], place: str) -> None:
        self._shown.text(read_text(block, place))

    def _add_picture(self, block: dict[str, Any], place: str) -> None:
        assert self._pictures is not None
        self._pictures.message_block(block, place)
        self._shown.picture()

    def _add_clip(self, block: dict[str, Any], place: str) -> None:
        assert self._pictures is not None
        self._shown.clip(self._pictures.clip(block, place))

    def _add_tool_result(self, block: dict[str, Any], place: str) -> None:
        """Add a tool result as a message of its own. `is_error` is ignored, because templates have
        no field for it. The text describes the error."""
        required(block, "tool_use_id", str, place)
        self._say()
        if block.get("content") is not None:
            for inner, at in blocks_of(block["content"], f"{place}.content"):
                read_block(inner, at, self._result_blocks)
        self._builder.tool(self._shown.content, self._shown.pictures)
        self._shown = MessageContent()

    def assistant(self, content: Any, place: str) -> None:
        thoughts: list[str] = []
        texts: list[str] = []
        calls: list[ToolCall] = []
        for kind, read in self._read(content, place, ASSISTANT_BLOCKS):
            if isinstance(read, ToolCall):
                calls.append(read)
            else:
                (thoughts if kind == "thinking" else texts).append(read)
        self._builder.reasoning("".join(thoughts))
        self._builder.content("".join(texts))
        for call in calls:
            self._builder.call(call)
        self._builder.end_turn()
        self._mark()

    def breakpoint_here(self) -> None:
        self.breakpoints[len(self.messages)] = None

    def _say(self) -> None:
        """Add the user's content read so far, if there is any."""
        if not self._shown.is_empty:
            self._builder.user(self._shown.content, self._shown.pictures)
            self._shown = MessageContent()

    def _read(self, content: Any, place: str, readers: Readers[Read]) -> list[tuple[str, Read]]:
        """Return the type of each block of a message and the result of its reader. Count the
        blocks that ask for a checkpoint."""
        found = []
        for block, at in blocks_of(content, place):
            found.append((str(block["type"]), read_block(block, at, readers)))
            self._asked += _asks_for_cache(block.get("cache_control"), f"{at}.cache_control")
        return found

    def _mark(self) -> None:
        """Set a checkpoint at the message's end if any of its blocks asked for one. Raises
        InvalidField if too many blocks of the request did."""
        if self._asked > self._answered:
            self._answered = self._asked
            self.breakpoint_here()
        if self._asked > _MAX_BREAKPOINTS:
            raise InvalidField(
                "cache_control", f"is in {self._asked} blocks: a maximum of {_MAX_BREAKPOINTS} may"
            )


def _asks_for_cache(control: Any, place: str) -> bool:
    """Return True if `cache_control` asks for a checkpoint. Its `ttl` is ignored: a cached prefix
    stays until its space is needed."""
    if control is None:
        return False
    if not isinstance(control, dict) or control.get("type") != "ephemeral":
        raise InvalidField(place, 'must be {"type": "ephemeral"}')
    return True


_ROLES = {"user": _Reader.user, "assistant": _Reader.assistant, "system": _Reader.system}
