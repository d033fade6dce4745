"""Hides the names of added tokens in what clients send while a chat template runs.

Owns the marks that stand for them. Knows neither templates nor token ids. One rendering, one guard.
Invariant: no string that a client sent reaches the template with a name in it, wherever it stands:
content, tool results, tool definitions, arguments. In an assistant's own words only special tokens
count, since the others (<think>, <tool_call>) are text that the model itself wrote.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from .chat_message import ROLES, ChatMessage, ChatTemplateError
from .tokenizer import Tokenizer


class SpecialTokenGuard:
    """messages, tools: what the template may see."""

    def __init__(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[Mapping[str, Any]],
        tokenizer: Tokenizer,
    ) -> None:
        for index, message in enumerate(messages):
            if message.role not in ROLES:
                raise ChatTemplateError(
                    f"messages[{index}].role is {message.role!r}: use one of {', '.join(ROLES)}"
                )
        shown = [message.variables() for message in messages]
        serial = 0
        while any(f"\ue000{serial}:" in text for text in _strings([shown, *tools])):
            serial += 1
        self._serial = serial
        self._hidden: list[str] = []
        self._mark = re.compile(f"\ue000{serial}:([0-9]+)\ue001")
        added = any_of(tokenizer.added_tokens)
        special = any_of(tokenizer.special_tokens)
        self.messages: list[dict[str, Any]] = [
            {
                **self._hide(
                    {key: value for key, value in message.items() if key != "content"}, added
                ),
                "content": self._hide(
                    message["content"], special if message["role"] == "assistant" else added
                ),
            }
            for message in shown
        ]
        self.tools: list[Any] = [self._hide(tool, added) for tool in tools]

    def restore(self, text: str) -> str:
        return self._mark.sub(lambda match: self._hidden[int(match.group(1))], text)

    def _hide(self, value: Any, names: "re.Pattern[str]") -> Any:
        """A copy with every name in it, keys included, replaced by a mark."""
        if isinstance(value, str):
            return names.sub(self._replace, value)
        if isinstance(value, Mapping):
            return {self._hide(key, names): self._hide(item, names) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._hide(item, names) for item in value]
        return value

    def _replace(self, match: "re.Match[str]") -> str:
        self._hidden.append(match.group())
        return f"\ue000{self._serial}:{len(self._hidden) - 1}\ue001"


def any_of(names: Iterable[str]) -> "re.Pattern[str]":
    """Matches the longest of the names at a place; nothing where there are none."""
    longest_first = sorted(names, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _strings(key)
            yield from _strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)
