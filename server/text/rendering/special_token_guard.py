"""Hides the names of added tokens in what clients send while a chat template runs.

Owns the marks that replace the names. Immutable, one a tokenizer; any thread. Invariants: no string
of a client (content, tool results, tool definitions, arguments, template variables) reaches the
template with such a name in it, nor with MARK_BEGIN, which is hidden like a name, so that every
mark in a rendered text is this node's own. A message is hidden alike whatever stands around it. In
an assistant's content and reasoning only special tokens are hidden, since the other added tokens
(<think>, <tool_call>) are text that the model wrote.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from tasuki.server.text.chat_message import ROLES, ChatMessage, ChatTemplateError
from tasuki.server.text.long_text import SLICE_CHARACTERS, matches
from tasuki.server.text.tokenizer import Tokenizer

# Private-use characters, which no template trims or looks for.
MARK_BEGIN = "\ue000"
MARK_END = "\ue001"

_HIDDEN = re.compile(f"{MARK_BEGIN}([0-9]+){MARK_END}")
_LONGEST_MARK = 24

Hide = Callable[[str], str]


class SpecialTokenGuard:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self._names = [*tokenizer.added_tokens, MARK_BEGIN]
        self._marks = {
            name: f"{MARK_BEGIN}{number}{MARK_END}" for number, name in enumerate(self._names)
        }
        longest = max(map(len, self._names))
        self._all, self._special = (
            partial(substituted, any_of(names), self._mark, longest=longest)
            for names in (self._names, [*tokenizer.special_tokens, MARK_BEGIN])
        )

    def messages(self, messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
        """As templates expect them, with names hidden: `tool_calls` only where there are any.
        Raises ChatTemplateError for a role that is none."""
        return [self._message(index, message) for index, message in enumerate(messages)]

    def tools(self, tools: Sequence[Mapping[str, Any]]) -> list[Any]:
        return [_hidden(tool, self._all) for tool in tools]

    def variables(self, variables: Mapping[str, Any]) -> dict[str, Any]:
        """With their names as they are: a template asks for them by name."""
        return {name: _hidden(value, self._all) for name, value in variables.items()}

    def restore(self, text: str) -> str:
        if MARK_BEGIN not in text:
            return text
        return substituted(
            _HIDDEN, lambda match: self._names[int(match.group(1))], text, _LONGEST_MARK
        )

    def _message(self, index: int, message: ChatMessage) -> dict[str, Any]:
        if message.role not in ROLES:
            raise ChatTemplateError(
                f"messages[{index}].role is {message.role!r}: use one of {', '.join(ROLES)}"
            )
        shown: dict[str, Any] = {"role": message.role}
        if message.tool_calls:
            shown["tool_calls"] = [
                {
                    "type": "function",
                    "function": {
                        "name": self._all(call.name),
                        "arguments": _hidden(call.arguments, self._all),
                    },
                }
                for call in message.tool_calls
            ]
        hide = self._special if message.role == "assistant" else self._all
        if message.reasoning is not None:
            # Templates of different makers ask for the one or the other.
            shown["reasoning_content"] = shown["reasoning"] = hide(message.reasoning)
        shown["content"] = hide(message.content)
        return shown

    def _mark(self, name: "re.Match[str]") -> str:
        return self._marks[name.group()]


def _hidden(value: Any, hide: Hide) -> Any:
    """A copy with every name in it, keys included, replaced by a mark."""
    if isinstance(value, str):
        return hide(value)
    if isinstance(value, list | tuple):
        return [_hidden(item, hide) for item in value]
    if isinstance(value, Mapping):
        return {_hidden(key, hide): _hidden(item, hide) for key, item in value.items()}
    return value


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
