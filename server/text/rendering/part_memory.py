"""The texts of beginnings of conversations, each rendered alone, remembered as far as comparing
them with another text needs.

Owns what is remembered. Thread rule: any thread. Invariants: a part is found by all that its text
depends on, and by its salt, so that nobody profits from another's conversations; nothing of a
text but its length and a digest is held. REQUIRES: one memory a template.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tasuki.server.text.chat_message import ChatMessage, ChatTemplateError
from tasuki.utils.bounded_cache import BoundedCache

# Some ten thousand parts. A turn of a long conversation adds two or three.
_CAPACITY = 4 << 20


@dataclass(frozen=True)
class _Part:
    length: int
    digest: bytes

    def begins(self, text: str) -> bool:
        return len(text) >= self.length and self.digest == _digest(text[: self.length])


# Of a part that the template refuses: no text has its digest.
_REFUSED = _Part(0, b"")


class PartMemory:
    def __init__(self) -> None:
        self._parts: BoundedCache[bytes, _Part] = BoundedCache(_CAPACITY)

    def of(
        self,
        salt: bytes,
        messages: Sequence[ChatMessage],
        tools: Sequence[Mapping[str, Any]],
    ) -> "ConversationParts":
        return ConversationParts(self._parts, salt, messages, tools)


class ConversationParts:
    """The parts of one conversation. One thread."""

    def __init__(
        self,
        parts: BoundedCache[bytes, _Part],
        salt: bytes,
        messages: Sequence[ChatMessage],
        tools: Sequence[Mapping[str, Any]],
    ) -> None:
        self._parts = parts
        self._messages = messages
        self._names: list[bytes] = []
        self._rolling = hashlib.blake2b(repr((salt, tools)).encode(), digest_size=16)

    def begins(self, count: int, text: str, render: Callable[[], str]) -> int | None:
        """The length of the first `count` messages rendered alone, where `text` begins with that;
        None where it does not, or the template refuses them. render: renders them, if they are not
        remembered; may raise ChatTemplateError."""
        part = self._parts.get(self._name(count))
        if part is None:
            try:
                part = self.remember(count, render())
            except ChatTemplateError:
                part = self._put(count, _REFUSED)
        return part.length if part.begins(text) else None

    def remember(self, count: int, text: str) -> _Part:
        """text: of the first `count` messages alone."""
        return self._put(count, _Part(len(text), _digest(text)))

    def _put(self, count: int, part: _Part) -> _Part:
        name = self._name(count)
        self._parts.put(name, part, len(name) + len(part.digest))
        return part

    def _name(self, count: int) -> bytes:
        for message in self._messages[len(self._names) : count]:
            value = (message.role, message.content, message.tool_calls)
            self._rolling.update(repr(value).encode())
            self._names.append(self._rolling.digest())
        return self._names[count - 1]


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()
