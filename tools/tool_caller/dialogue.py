"""Conversations with requests for calls, and the answers a tool caller has to learn.

Owns the language of the requests. A call's name, its arguments' names and their values are random
each time, so nothing can be memorised: the answer has to copy from the prompt. Randomness comes
from the caller's generator only.

    Call NAME with KEY="TEXT", KEY=3, KEY=["a", "b"].   the call
    Call NAME.                                          the call, without arguments
    Write {"KEY": "TEXT", "KEY": 3}.                    that JSON
    Say "TEXT".                                         that text
    (the answer of the last tool)                       its first line
"""

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Value = str | int | float | bool | list[str]
Render = Callable[[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]], bool], str]
"""Type of a function rendering a prompt. Arguments: messages, tools, and True if the answer has
thoughts. Result: the prompt's text up to the answer's start."""

_THOUGHT = "I do it."
_MARKS = tuple(":-_/'!?()*=#+;,,,@<>&$%[]{}~|")

_AROUND_NAMES = (
    *(("'", "'"), ("`", "` to"), ("the ", " is"), ('"', '", '), ("", "."), ("a ", ","), ("", "s")),
    *(("- ", ": "), ('{"', '": "'), ('["', '"]'), ("(", ")"), ("use ", " for "), ('"', '": ')),
)


@dataclass(frozen=True)
class Call:
    name: str
    arguments: dict[str, Value]

    def asked(self) -> str:
        """Return the call as a user requests it in a message."""
        if not self.arguments:
            return self.name
        items = (f"{key}={json.dumps(value)}" for key, value in self.arguments.items())
        return f"{self.name} with {', '.join(items)}"

    def written(self) -> str:
        """Return the call as a model of the Qwen3.5 family writes it."""
        lines = ["<tool_call>", f"<function={self.name}>"]
        for key, value in self.arguments.items():
            text = value if isinstance(value, str) else json.dumps(value)
            lines += [f"<parameter={key}>", text, "</parameter>"]
        return "\n".join([*lines, "</function>", "</tool_call>"])

    def in_history(self) -> dict[str, Any]:
        """Return the call as an object of the chat API's messages."""
        return {"type": "function", "function": {"name": self.name, "arguments": self.arguments}}


@dataclass
class Exchange:
    """A request in progress. answer: the next due answer. calls: tool calls made for it. since:
    messages exchanged since the request."""

    request: str
    answer: str
    calls: list[Call] = field(default_factory=list)
    since: list[dict[str, Any]] = field(default_factory=list)


class DialogueMaker:
    def __init__(
        self,
        words: Sequence[str],
        chooser: random.Random,
        passages: Sequence[str] = (),
        folders: Sequence[str] = (),
        names: Sequence[str] = (),
    ) -> None:
        """Set up the maker. words: pieces of words, without white space or punctuation. chooser:
        source of randomness. passages: texts by other authors; parts of them appear among the
        random text. folders: prefixes of some paths. names: names of tools and arguments, also used
        in prose."""
        self._words = words
        self._random = chooser
        self._passages = passages
        self._names = names
        self._path_starts = ("/", "", "https://", *(f"{folder}/" for folder in folders))

    def prompt_and_answer(self, render: Render, filler: int, longest: int) -> tuple[str, str]:
        """Return a prompt and its answer. filler: number of words of other text before the request.
        longest: largest number of words of a value. The answer excludes the end of its turn."""
        exchange = self._exchange(longest)
        thinks = self._random.random() < 0.5
        tools = [self._tool(call) for call in exchange.calls]
        messages: list[dict[str, Any]] = []
        while filler > 0:
            size = self._random.randint(1, filler)
            filler -= size
            if self._random.random() < 0.5:
                tools.append(self._tool(self._call(3), self._prose(size)))
            elif not messages:
                messages.append({"role": "system", "content": self._prose(size)})
            else:
                messages += self._earlier(size)
        self._random.shuffle(tools)
        messages += [{"role": "user", "content": exchange.request}, *exchange.since]
        return render(messages, tools, thinks), _opened(thinks) + exchange.answer

    def next_turn(self, render: Render, longest: int) -> tuple[str, str]:
        """Return a further request's prompt text, without the text before it, and its answer."""
        exchange = self._exchange(longest)
        thinks = self._random.random() < 0.5
        messages = [{"role": "user", "content": exchange.request}, *exchange.since]
        return render(messages, [], thinks), _opened(thinks) + exchange.answer

    def _exchange(self, longest: int) -> Exchange:
        kind = self._random.random()
        if kind < 0.25:
            text = self._text(longest)
            return Exchange(self._around(f'Say "{text}".'), text)
        if kind < 0.4:
            written = json.dumps(self._call(longest).arguments or {self._word(): 1})
            return Exchange(self._around(f"Write {written}."), written)
        first = self._call(longest)
        if kind < 0.8:
            request = self._around(f"Call {first.asked()}.")
            return Exchange(request, first.written(), [first])
        response = {"role": "tool", "content": self._response(longest)}
        answered = [self._assistant(first), response]
        said = str(response["content"]).split("\n")[0].strip()
        request = self._around(f"Call {first.asked()}.")
        return Exchange(request, said, [first], answered)

    def _assistant(self, call: Call) -> dict[str, Any]:
        return {
            "role": "assistant",
            "content": "",
            "reasoning_content": _THOUGHT if self._random.random() < 0.7 else "",
            "tool_calls": [call.in_history()],
        }

    def _earlier(self, size: int) -> list[dict[str, Any]]:
        """Return the messages of an earlier request and its answer. size: number of words of
        prose."""
        if self._random.random() < 0.5:
            asked, answer = self._prose(size), self._text(4)
        else:
            call = self._call(3)
            asked, answer = f"Call {call.asked()}.", self._prose(size)
        return [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]

    def _around(self, request: str) -> str:
        """Return the request text, sometimes with random words before it."""
        if self._random.random() < 0.7:
            return request
        before = self._prose(self._random.randint(1, 12))
        return before + self._random.choice((" ", "\n")) + request

    def _call(self, longest: int) -> Call:
        arguments = {
            self._name(2): self._value(longest)
            for _ in range(self._random.choice((0, 1, 1, 1, 2, 2, 3)))
        }
        return Call(self._name(4), arguments)

    def _tool(self, call: Call, description: str = "") -> dict[str, Any]:
        kinds = {str: "string", int: "integer", float: "number", bool: "boolean", list: "array"}
        properties = {key: {"type": kinds[type(value)]} for key, value in call.arguments.items()}
        schema = {"type": "object", "properties": properties, "required": [*properties]}
        function = {
            "name": call.name,
            "description": description or self._prose(self._random.randint(0, 6)),
            "parameters": schema,
        }
        return {"type": "function", "function": function}

    def _value(self, longest: int) -> Value:
        kind = self._random.random()
        if kind < 0.2:
            return self._random.randint(0, 10 ** self._random.randint(1, 6))
        if kind < 0.3:
            return self._random.random() < 0.5
        if kind < 0.38:
            return [self._text(2) for _ in range(self._random.randint(1, 3))]
        if kind < 0.55:
            parts = [self._name(2) for _ in range(self._random.randint(1, 4))]
            return (
                self._random.choice(self._path_starts)
                + "/".join(parts)
                + self._random.choice(("", ".py", ".txt"))
            )
        return self._text(longest)

    def _response(self, longest: int) -> str:
        lines = [self._text(longest) for _ in range(self._random.choice((1, 1, 2, 3)))]
        return "\n".join(lines)

    def _text(self, longest: int) -> str:
        """Return random text for a value, without quotation mark, backslash or line break, and
        without white space at its ends. longest: largest number of words."""
        words = [self._word() for _ in range(self._random.randint(1, longest))]
        text = words[0].capitalize() if self._random.random() < 0.5 else words[0]
        for word in words[1:]:
            draw = self._random.random()
            text += (
                " " if draw < 0.7 else self._random.choice(_MARKS) + (" " if draw < 0.85 else "")
            )
            text += word if self._random.random() < 0.9 else str(self._random.randint(0, 9999))
        return text + (self._random.choice(_MARKS) if self._random.random() < 0.2 else "")

    def _prose(self, size: int) -> str:
        """Return random prose of about `size` words, sometimes with parts resembling requests."""
        parts: list[str] = []
        while len(parts) < size:
            if self._passages and self._random.random() < 0.5:
                parts.append(self._passage())
                continue
            if self._names and self._random.random() < 0.3:
                parts.append(self._mention())
                continue
            draw = self._random.random()
            if draw < 0.04:
                call = self._call(2)
                parts.append(
                    f"{self._random.choice(('Call', 'call', 'Use', 'Write'))} {call.asked()}."
                )
            elif draw < 0.07:
                parts.append(json.dumps(self._call(2).arguments))
            elif draw < 0.09:
                parts.append(
                    self._random.choice(
                        ("\n", "\n\n", "\n- ", "Say", "with", "<function=", "`", "**")
                    )
                )
            else:
                parts.append(self._text(6))
        return " ".join(parts[:size])

    def _mention(self) -> str:
        before, after = self._random.choice(_AROUND_NAMES)
        return f"{before}{self._random.choice(self._names)}{after}"

    def _passage(self) -> str:
        text = self._random.choice(self._passages)
        size = self._random.randint(40, 400)
        begin = self._random.randrange(max(1, len(text) - size))
        return text[begin : begin + size]

    def _name(self, longest: int) -> str:
        if self._names and self._random.random() < 0.5:
            return self._random.choice(self._names)
        parts = [self._word() for _ in range(self._random.randint(1, longest))]
        if self._random.random() < 0.2:
            return parts[0] + "".join(part.capitalize() for part in parts[1:])
        return self._random.choice(("_", "_", "_", "-", "__")).join(parts)

    def _word(self) -> str:
        count = self._random.choice((1, 1, 1, 2, 2, 3))
        return "".join(self._random.choice(self._words) for _ in range(count))


def _opened(thinks: bool) -> str:
    """Return the text at the start of an answer's turn, before the answer itself."""
    return f"{_THOUGHT}\n</think>\n\n" if thinks else ""
