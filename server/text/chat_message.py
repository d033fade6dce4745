"""The messages of a conversation, in the form chat templates take. Plain values, any thread.

ConversationBuilder makes these messages for APIs with another division of a conversation. One
conversation, one thread. MessageContent joins the parts of one message.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

ROLES = ("system", "user", "assistant", "tool")


class ChatTemplateError(ValueError):
    """Error for messages a chat template cannot render. Its text gives the cause and the fix."""


@dataclass(frozen=True)
class ToolCall:
    """A function call written by the model, to be run by the client. name: the function's name.
    arguments: JSON values by parameter name."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class ChatMessage:
    """One message of a conversation. role: one of ROLES. tool_calls, reasoning: only in an
    assistant's message. reasoning: None if it is unknown; a template may then search the content
    for it. pictures: ascending places of pictures in the content, in characters. The pictures
    themselves are kept apart from the messages, in the same order."""

    role: str
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning: str | None = None
    pictures: tuple[int, ...] = ()

    def content_parts(self) -> list[str | None]:
        """Return the content cut at its pictures: texts, and None for each picture. Empty texts are
        left out."""
        parts: list[str | None] = []
        begin = 0
        for place in self.pictures:
            if place > begin:
                parts.append(self.content[begin:place])
            parts.append(None)
            begin = place
        if begin < len(self.content):
            parts.append(self.content[begin:])
        return parts


class MessageContent:
    """The content of one message while its parts are read: texts, and places of pictures."""

    __slots__ = ("_length", "_pictures", "_texts")

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._length = 0
        self._pictures: list[int] = []

    @property
    def is_empty(self) -> bool:
        """Return True if no part was added, not even an empty text."""
        return not self._texts and not self._pictures

    @property
    def content(self) -> str:
        return "".join(self._texts)

    @property
    def pictures(self) -> tuple[int, ...]:
        """Return the pictures' places in the content, as ChatMessage.pictures."""
        return tuple(self._pictures)

    def text(self, text: str) -> None:
        self._texts.append(text)
        self._length += len(text)

    def picture(self) -> None:
        self._pictures.append(self._length)

    def clip(self, times: Sequence[str]) -> None:
        """Add a clip: a picture for each pair of frames, with its time before it."""
        for time in times:
            self.text(time)
            self.picture()


class ConversationBuilder:
    def __init__(self, before: Sequence[ChatMessage] = ()) -> None:
        """before: messages already at the beginning of the conversation."""
        self._messages: list[ChatMessage] = [*before]
        # Texts after the last message's content, not joined yet. Joining each on arrival would copy
        # a long message for every short reminder after it.
        self._joining: list[str] = []
        self._reasoning: list[str] = []
        self._content: list[str] = []
        self._calls: list[ToolCall] = []
        self._answers = False

    @property
    def messages(self) -> list[ChatMessage]:
        """Return all complete messages so far. An open assistant's turn is not among them."""
        if self._joining:
            last = self._messages[-1]
            content = "".join([last.content, *self._joining])
            self._messages[-1] = ChatMessage(last.role, content, pictures=last.pictures)
            self._joining.clear()
        return self._messages

    def system(self, text: str) -> None:
        """Add a system message, if it is the first message. Templates take no later one. After a
        system message, the text is joined to it. After another message, it is joined as a reminder.
        A separate user's turn would end the reasoning about the user's last question. Only after an
        assistant's message is the reminder a user's message."""
        self.end_turn()
        last = self._messages[-1] if self._messages else None
        if last is None:
            self.messages.append(ChatMessage("system", text))
        elif last.role == "system":
            self._joining.append(f"\n\n{text}")
        elif last.role == "assistant":
            self.messages.append(ChatMessage("user", _reminder(text)))
        else:
            self._joining.append(f"\n{_reminder(text)}")

    def user(self, text: str, pictures: tuple[int, ...] = ()) -> None:
        self.end_turn()
        self.messages.append(ChatMessage("user", text, pictures=pictures))

    def message(self, message: ChatMessage) -> None:
        """Add a complete message unchanged. Its role is not system: see system()."""
        self.end_turn()
        self.messages.append(message)

    def tool(self, text: str, pictures: tuple[int, ...] = ()) -> None:
        """Add the result of a tool call."""
        self.end_turn()
        self.messages.append(ChatMessage("tool", text, pictures=pictures))

    def reasoning(self, text: str) -> None:
        """Add reasoning to the assistant's turn. In a turn reasoning comes first, so reasoning
        after content or a call begins another turn."""
        if self._content or self._calls:
            self.end_turn()
        self._answers = True
        self._reasoning.append(text)

    def content(self, text: str) -> None:
        self._answers = True
        self._content.append(text)

    def call(self, call: ToolCall) -> None:
        self._answers = True
        self._calls.append(call)

    def end_turn(self) -> None:
        """End the assistant's turn and add its message, if a turn has begun."""
        if self._answers:
            # Without reasoning it is "", not None: templates need not look for it in the text.
            reasoning, content = "".join(self._reasoning), "".join(self._content)
            calls = tuple(self._calls)
            self.messages.append(ChatMessage("assistant", content, calls, reasoning))
            self._reasoning, self._content, self._calls = [], [], []
            self._answers = False


def _reminder(text: str) -> str:
    tagged = text.lstrip().startswith("<system-reminder>")
    return text if tagged else f"<system-reminder>\n{text}\n</system-reminder>"
