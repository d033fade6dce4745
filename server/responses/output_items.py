"""The output items of a response: messages, reasoning, calls of functions, and calls of tools with
free text.

Each item grows in segments. Its methods return bodies of events, without their number in the
stream. One answer, one thread.

MessageLogprobs matches an answer's tokens with a message's text, to show the tokens' logprobs. A
parser emits text later than its tokens arrive, and drops markers such as tags. Owns the tokens
waiting for their text to be emitted. One answer, one thread. Invariant: a token is in at most one
message, in order.
"""

import json
from collections import deque
from collections.abc import Iterator
from typing import Any, Protocol

import msgspec

from tasuki.engine.messages import TokenOut
from tasuki.server.openai.token_details import TokenNames, token_logprob
from tasuki.server.text.text_answer import GrowingText

from .input_items import carried
from .tools import CUSTOM_INPUT, ToolName

_MOST_WAITING = 256
"""Largest number of tokens waiting for their text. A marker held back by a parser is shorter."""

_encode = msgspec.json.Encoder().encode


class MessageLogprobs:
    def __init__(self, names: TokenNames) -> None:
        """names: rule for naming tokens in logprobs."""
        self._names = names
        self._waiting: deque[tuple[int, TokenOut]] = deque(maxlen=_MOST_WAITING)
        """Tokens with their text not in a message yet. Each comes with its text's length in
        characters."""
        self._surplus = 0
        """Number of characters of the last returned token not in a message yet."""

    def add(self, token: TokenOut, text: str) -> None:
        """Add the answer's next token. text: the text completed by the token."""
        self._waiting.append((len(text), token))

    def drop(self) -> None:
        """Drop the tokens waiting for their text, because it belongs to no message."""
        self._waiting.clear()
        self._surplus = 0

    def begin(self, text: str) -> None:
        """Begin a message with this text. Drop waiting tokens before the text, because they are
        markers."""
        self._surplus = 0
        left = sum(length for length, _ in self._waiting)
        while self._waiting and left - self._waiting[0][0] >= len(text):
            length, _ = self._waiting[0]
            if not length and left == len(text):
                return  # A part of the first character.
            left -= length
            self._waiting.popleft()

    def of(self, text: str) -> bytes:
        """Return the logprobs of the tokens with the message's next text, as JSON entries, each
        followed by a comma."""
        needed = len(text) - self._surplus
        found = bytearray()
        while needed > 0 and self._waiting:
            length, token = self._waiting.popleft()
            needed -= length
            found += _encode(token_logprob(token, self._names))
            found += b","
        self._surplus = max(0, -needed)
        return bytes(found)


Body = dict[str, Any]


class OutputItem(Protocol):
    def begin(self) -> Iterator[Body]: ...

    def grow(self, text: str) -> Iterator[Body]: ...

    def end(self) -> Iterator[Body]: ...

    def whole(self, status: str) -> Body:
        """Return the item as JSON, as far as it has arrived. status: in_progress, completed or
        incomplete."""
        ...


class _TextItem:
    """An item with one part of text. A subclass sets the type of the part and the names of the
    item's events."""

    part_type: str
    event: str

    def __init__(self, item_id: str) -> None:
        self._place = {"item_id": item_id, "content_index": 0}
        self._id = item_id
        self._text = GrowingText()

    @property
    def text(self) -> str:
        return str(self._text)

    def part(self, text: str) -> Body:
        return {"type": self.part_type, "text": text}

    def more(self) -> Body:
        """Return further fields for the event with the item's whole text."""
        return {}

    def more_of_delta(self) -> Body:
        """Return further fields for an event with new text of the item."""
        return {}

    def begin(self) -> Iterator[Body]:
        yield {"type": "response.content_part.added", **self._place, "part": self.part("")}

    def grow(self, text: str) -> Iterator[Body]:
        self._text.add(text)
        yield {"type": f"{self.event}.delta", **self._place, "delta": text, **self.more_of_delta()}

    def end(self) -> Iterator[Body]:
        text = self.text
        yield {"type": f"{self.event}.done", **self._place, "text": text, **self.more()}
        yield {"type": "response.content_part.done", **self._place, "part": self.part(text)}

    def _parts(self, status: str) -> list[Body]:
        return [] if status == "in_progress" else [self.part(self.text)]


class MessageItem(_TextItem):
    part_type = "output_text"
    event = "response.output_text"

    def __init__(self, item_id: str) -> None:
        super().__init__(item_id)
        self._newest = b""
        self._logprobs = bytearray()

    def score(self, logprobs: bytes) -> None:
        """Set the logprobs of the text in the next grow(). logprobs: JSON entries, each followed by
        a comma."""
        self._newest = logprobs
        self._logprobs += logprobs

    def part(self, text: str) -> Body:
        return {**super().part(text), "annotations": [], **self.more()}

    def more(self) -> Body:
        return {"logprobs": _listed(self._logprobs)}

    def more_of_delta(self) -> Body:
        return {"logprobs": _listed(self._newest)}

    def whole(self, status: str) -> Body:
        item = {"id": self._id, "type": "message", "status": status, "role": "assistant"}
        return {**item, "content": self._parts(status)}


def _listed(values: bytes | bytearray) -> msgspec.Raw:
    """Return a JSON list. values: JSON values, each followed by a comma."""
    return msgspec.Raw(b"[%b]" % bytes(values).removesuffix(b","))


class ReasoningItem(_TextItem):
    part_type = "reasoning_text"
    event = "response.reasoning_text"

    def __init__(self, item_id: str, *, is_carried: bool) -> None:
        """is_carried: True if the item also has its text in `encrypted_content`, as asked by the
        client."""
        super().__init__(item_id)
        self._is_carried = is_carried

    def whole(self, status: str) -> Body:
        item: Body = {"id": self._id, "type": "reasoning", "status": status, "summary": []}
        ended = status != "in_progress"
        encoded = {"encrypted_content": carried(self.text)} if self._is_carried and ended else {}
        return {**item, "content": self._parts(status), **encoded}


class _CallItem:
    """A tool call. Its arguments arrive in segments."""

    def __init__(self, item_id: str, call_id: str, name: ToolName) -> None:
        self._id = item_id
        self._name = name
        self._call_id = call_id
        self._text = GrowingText()

    @property
    def _arguments(self) -> str:
        return str(self._text)

    def begin(self) -> Iterator[Body]:
        yield from ()

    def _head(self, kind: str, status: str) -> Body:
        """Return the first fields of a call's item, for function calls and custom calls. kind: type
        of the item."""
        head = {"id": self._id, "type": kind, "status": status, "call_id": self._call_id}
        namespace = {} if self._name.namespace is None else {"namespace": self._name.namespace}
        return {**head, "name": self._name.name, **namespace}


class FunctionCallItem(_CallItem):
    def grow(self, text: str) -> Iterator[Body]:
        self._text.add(text)
        event = "response.function_call_arguments.delta"
        yield {"type": event, "item_id": self._id, "delta": text}

    def end(self) -> Iterator[Body]:
        event = "response.function_call_arguments.done"
        body = {"name": self._name.name, "arguments": self._arguments}
        yield {"type": event, "item_id": self._id, **body}

    def whole(self, status: str) -> Body:
        return {**self._head("function_call", status), "arguments": self._arguments}


class CustomCallItem(_CallItem):
    """A call of a tool with free text. Its text is known only once all arguments have arrived."""

    def grow(self, text: str) -> Iterator[Body]:
        self._text.add(text)
        yield from ()

    def end(self) -> Iterator[Body]:
        text, event = self._input, "response.custom_tool_call_input"
        yield {"type": f"{event}.delta", "item_id": self._id, "delta": text}
        yield {"type": f"{event}.done", "item_id": self._id, "input": text}

    def whole(self, status: str) -> Body:
        text = "" if status == "in_progress" else self._input
        return {**self._head("custom_tool_call", status), "input": text}

    @property
    def _input(self) -> str:
        """Return the free text of the call. If the arguments are not those of a free-text tool,
        return them as they are."""
        arguments = self._arguments
        try:
            value = json.loads(arguments)
        except (ValueError, RecursionError):
            return arguments
        text = value.get(CUSTOM_INPUT) if isinstance(value, dict) else None
        return text if isinstance(text, str) else arguments
