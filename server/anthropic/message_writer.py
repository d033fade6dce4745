"""Writer of an answer as an Anthropic message: a JSON body of blocks, or the events of a stream.

Owns the text of the answer so far. Sends nothing over HTTP itself. One answer, one thread.
Invariant: a stream has at most one open block, and closes it before the next block begins.
"""

from dataclasses import dataclass
from typing import Any

from tasuki.engine.messages import FinishReason
from tasuki.server.http.errors import anthropic_error, error_body, error_status
from tasuki.server.http.reply import BodyOf, TextEvent, named_event
from tasuki.server.openai.token_details import hybrid_hit, picture_tokens
from tasuki.server.text.json_reading import read_whole_arguments
from tasuki.server.text.parsing.answer_parser import AnswerParser
from tasuki.server.text.text_answer import (
    AnswerItem,
    CallArguments,
    CallBegin,
    CallEnd,
    ChatEnding,
    Content,
    Ending,
    GrowingText,
    Piece,
    Reasoning,
)

from .conversation import ThinkingChoice, signature_of

_KEPT_OF_LETTER = 2
"""Bytes of memory for each character of the answer: one in its block, and one while the reply is
written."""
_PING = named_event({"type": "ping"})


@dataclass(frozen=True)
class MessageHead:
    """The fields of a reply known before its answer. prompt_tokens: length of the prompt in tokens.
    fills_context: True if the client's `max_tokens` exceeds the context after the prompt. with_hit:
    True if `usage` has the breakdown of the cache hit."""

    id: str
    model: str
    prompt_tokens: int
    fills_context: bool
    with_hit: bool


class _Block:
    """The open content block of a reply. start: the block's fields in its first event. delta: makes
    the body of an event from new text. texts: the block's text so far; for a tool call, its input
    as JSON text."""

    def __init__(self, start: dict[str, Any], delta: BodyOf) -> None:
        self.start = start
        self.delta = delta
        self.texts = GrowingText()

    @property
    def text(self) -> str:
        return str(self.texts)


class MessageWriter:
    """An AnswerWriter for Anthropic's Messages API. head: the fields known before the answer.
    parser: splits the answer into reasoning, content and calls. thinking: the request's thinking
    settings."""

    def __init__(self, head: MessageHead, parser: AnswerParser, thinking: ThinkingChoice) -> None:
        self.id = head.id
        self._head = head
        self.may_complete = parser.may_complete
        self.keeps = True
        self._parser = parser
        self._thinking = thinking
        # A call's input is kept as text here.
        self._content: list[dict[str, Any]] = []
        self._open: _Block | None = None
        self._event: TextEvent | None = None
        self._end: dict[str, Any] = {"stop_reason": None, "stop_sequence": None}
        self._usage = self._usage_so_far()
        self._kept_bytes = 0

    @property
    def complete(self) -> bool:
        return self._parser.complete

    @property
    def kept_bytes(self) -> int:
        return self._kept_bytes

    def opening(self) -> bytes:
        return named_event({"type": "message_start", "message": self.whole()}) + _PING

    def piece(self, piece: Piece) -> bytes:
        self._kept_bytes += _KEPT_OF_LETTER * len(piece.text)
        return b"".join(map(self._add, self._parser.push(piece)))

    def ending(self, rest: Piece, ending: Ending) -> bytes:
        events = self.piece(rest)
        events += b"".join(map(self._add, self._parser.finish(ending))) + self._close()
        end = self._parser.ending(ending)
        self._end = {"stop_reason": self._reason(end), "stop_sequence": end.ending.stop}
        self._usage = self._whole_usage(end)
        last = {"type": "message_delta", "delta": self._end, "usage": self._usage}
        return events + named_event(last) + named_event({"type": "message_stop"})

    def failure(self, error: Exception) -> bytes:
        # The request's id, without the prefix for its kind.
        request = self.id.partition("_")[2]
        return named_event(anthropic_error(error_status(error), error_body(error), request))

    def keep_alive(self) -> bytes:
        return _PING

    def whole(self) -> dict[str, Any]:
        return {
            "id": self._head.id,
            "type": "message",
            "role": "assistant",
            "model": self._head.model,
            "content": [_whole_block(block) for block in self._content],
            **self._end,
            "usage": self._usage,
        }

    def _add(self, item: AnswerItem) -> bytes:
        match item:
            case Reasoning(text):
                return b"" if self._thinking.hidden else self._grow("thinking", text)
            case Content(text):
                return self._grow("text", text)
            case CallBegin(_, call, name):
                return self._close() + self._begin(_tool_use(call, name))
            case CallArguments(_, arguments):
                return self._append(arguments)
            case CallEnd():
                return self._close()

    def _grow(self, kind: str, text: str) -> bytes:
        begun = b""
        if self._open is None or self._open.start["type"] != kind:
            begun = self._close() + self._begin(_thinking() if kind == "thinking" else _text())
        if kind == "thinking" and not self._thinking.shown:
            assert self._open is not None
            self._open.texts.add(text)
            return begun
        return begun + self._append(text)

    def _begin(self, block: _Block) -> bytes:
        index = len(self._content)
        self._open = block
        self._event = TextEvent(
            lambda text: {
                "type": "content_block_delta",
                "index": index,
                "delta": block.delta(text),
            }
        )
        start = {"type": "content_block_start", "index": index, "content_block": block.start}
        return named_event(start)

    def _append(self, text: str) -> bytes:
        assert self._open is not None and self._event is not None
        self._open.texts.add(text)
        return self._event.holding(text)

    def _close(self) -> bytes:
        block, self._open = self._open, None
        if block is None:
            return b""
        index = len(self._content)
        signed = b""
        if block.start["type"] == "thinking":
            signature = signature_of(block.text, self._thinking)
            shown = block.text if self._thinking.shown else ""
            self._content.append({**block.start, "thinking": shown, "signature": signature})
            delta = {"type": "signature_delta", "signature": signature}
            signed = named_event({"type": "content_block_delta", "index": index, "delta": delta})
        elif block.start["type"] == "text":
            self._content.append({**block.start, "text": block.text})
        else:
            self._content.append({**block.start, "input": block.text})
        return signed + named_event({"type": "content_block_stop", "index": index})

    def _reason(self, end: ChatEnding) -> str:
        if end.ending.stop is not None:
            return "stop_sequence"
        if end.awaits_tools:
            return "tool_use"
        if end.ending.reason is FinishReason.LENGTH:
            filled = self._head.fills_context
            return "model_context_window_exceeded" if filled else "max_tokens"
        return "end_turn"

    def _usage_so_far(self) -> dict[str, Any]:
        """Return the `usage` for the first event, before the cache hit is known: all prompt tokens
        count as computed."""
        return {
            "input_tokens": self._head.prompt_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 0,
        }

    def _whole_usage(self, end: ChatEnding) -> dict[str, Any]:
        """Return the `usage` of the whole answer. `input_tokens` counts only the computed prompt
        tokens, not the cached ones."""
        usage = end.ending.usage
        hit = usage.hit
        cached = 0 if hit is None else hit.usable_tokens
        counted: dict[str, Any] = {
            **self._usage_so_far(),
            "input_tokens": usage.prompt_tokens - cached,
            "cache_read_input_tokens": cached,
            "output_tokens": end.ending.completion_tokens,
            "output_tokens_details": {"thinking_tokens": end.reasoning_tokens},
        }
        if seen := picture_tokens([usage]):
            counted["input_tokens_details"] = seen
        if self._head.with_hit and hit is not None:
            counted["hybrid"] = hybrid_hit(hit, usage.pictures)
        return counted


def _thinking() -> _Block:
    start = {"type": "thinking", "thinking": "", "signature": ""}
    return _Block(start, lambda text: {"type": "thinking_delta", "thinking": text})


def _text() -> _Block:
    return _Block({"type": "text", "text": ""}, lambda text: {"type": "text_delta", "text": text})


def _tool_use(call: str, name: str) -> _Block:
    start = {"type": "tool_use", "id": call, "name": name, "input": {}}
    return _Block(start, lambda text: {"type": "input_json_delta", "partial_json": text})


def _whole_block(block: dict[str, Any]) -> dict[str, Any]:
    """Return a block of a reply without streaming, with a call's input parsed from JSON text to an
    object.

    Streams do not need the object, and parsing may be slow, so the text is parsed only here.
    """
    if block["type"] != "tool_use":
        return block
    return {**block, "input": read_whole_arguments(block["input"])}
