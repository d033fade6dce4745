"""Hides the names of added tokens in what clients send while a chat template runs.

Owns the marks that replace the names. One rendering, one guard. Invariants: no string of a client
(content, tool results, tool definitions, arguments) reaches the template with such a name in it,
nor with MARK_BEGIN, which is hidden like a name, so that every mark in a rendered text is this
node's own. In an assistant's content only special tokens are hidden, since the other added tokens
(<think>, <tool_call>) are text that the model wrote.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from .chat_message import ROLES, ChatMessage, ChatTemplateError
from .long_text import SLICE_CHARACTERS, matches
from .tokenizer import Tokenizer

# Private-use characters, which no template trims or looks for.
MARK_BEGIN = "\ue000"
MARK_END = "\ue001"

_HIDDEN = re.compile(f"{MARK_BEGIN}([0-9]+){MARK_END}")
_LONGEST_MARK = 24


class SpecialTokenGuard:
    """messages, tools: the request's, with names hidden, for the template."""

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
        self._hidden: list[str] = []
        self._marks: dict[str, str] = {}
        self._longest = max(map(len, [*tokenizer.added_tokens, MARK_BEGIN]))
        added = any_of([*tokenizer.added_tokens, MARK_BEGIN])
        special = any_of([*tokenizer.special_tokens, MARK_BEGIN])
        self.messages: list[dict[str, Any]] = [
            {
                **self._hide(
                    {key: value for key, value in message.items() if key != "content"}, added
                ),
                "content": self._hide(
                    message["content"], special if message["role"] == "assistant" else added
                ),
            }
            for message in (message.variables() for message in messages)
        ]
        self.tools: list[Any] = [self._hide(tool, added) for tool in tools]

    def restore(self, text: str) -> str:
        return substituted(
            _HIDDEN, lambda match: self._hidden[int(match.group(1))], text, _LONGEST_MARK
        )

    def _hide(self, value: Any, names: "re.Pattern[str]") -> Any:
        """A copy with every name in it, keys included, replaced by a mark."""
        if isinstance(value, str):
            return substituted(names, self._replace, value, self._longest)
        if isinstance(value, Mapping):
            return {self._hide(key, names): self._hide(item, names) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._hide(item, names) for item in value]
        return value

    def _replace(self, match: "re.Match[str]") -> str:
        name = match.group()
        if name not in self._marks:
            self._marks[name] = f"{MARK_BEGIN}{len(self._hidden)}{MARK_END}"
            self._hidden.append(name)
        return self._marks[name]


def any_of(names: Iterable[str]) -> "re.Pattern[str]":
    """Matches the longest of the names at a place; nothing where there are none."""
    longest_first = sorted(names, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")


def substituted(
    pattern: "re.Pattern[str]",
    replace: Callable[["re.Match[str]"], str],
    text: str,
    longest: int,
    slice_characters: int = SLICE_CHARACTERS,
) -> str:
    """As `pattern.sub(replace, text)`, with what `matches` requires."""
    if len(text) <= slice_characters:
        return pattern.sub(replace, text)
    pieces = []
    position = 0
    for found in matches(pattern, text, longest, slice_characters):
        pieces += [text[position : found.start()], replace(found)]
        position = found.end()
    return "".join([*pieces, text[position:]])
