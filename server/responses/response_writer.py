"""Writer of an answer as OpenAI's `response`: a JSON body of items, or the events of a stream.

ResponseWriter owns the answer so far. It sends nothing over HTTP itself. One answer, one thread.
Invariants: a stream has at most one open item, and ends it before the next is added. Events are
numbered without a gap.

ResponseHead: the fields of a response known before its answer: short fields, and copies of the
request's fields. Immutable values. Invariant: the copies are held once, as JSON. Only the first and
last events of a response contain them, because they may be as long as the request's body.
"""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from tasuki.engine.messages import FinishReason
from tasuki.server.http.errors import error_body
from tasuki.server.http.reply import named_event
from tasuki.server.openai.token_details import hybrid_hit, picture_tokens
from tasuki.server.text.parsing.answer_parser import AnswerParser
from tasuki.server.text.text_answer import (
    AnswerItem,
    CallArguments,
    CallBegin,
    CallEnd,
    ChatEnding,
    Content,
    Ending,
    Piece,
    Reasoning,
)

from .output_items import (
    CustomCallItem,
    FunctionCallItem,
    MessageItem,
    MessageLogprobs,
    OutputItem,
    ReasoningItem,
)
from .stored_responses import Store, StoredResponse, StoredTurn, TurnRecord, item_id
from .tools import ResponseTools

_WITHOUT_ECHOES: dict[str, Any] = {
    "instructions": None,
    "metadata": {},
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
}
"""Default values of the request's fields in a response. Clients read these fields in every
response, so none is left out."""


@dataclass(frozen=True)
class ResponseHead:
    """The fields of a response known before its answer. brief: all these fields, with defaults in
    place of the request's own. whole: all these fields, the request's own as msgspec.Raw.
    kept_bytes: bytes of memory for the request's own fields. with_hit: `usage` has the breakdown of
    the cache hit. carries_reasoning: reasoning items also have their text in
    `encrypted_content`."""

    brief: Mapping[str, Any]
    whole: Mapping[str, Any]
    kept_bytes: int
    with_hit: bool
    carries_reasoning: bool

    @staticmethod
    def of(
        plain: Mapping[str, Any],
        echoed: Mapping[str, Any],
        with_hit: bool = False,
        *,
        carries_reasoning: bool = False,
    ) -> "ResponseHead":
        """Return the head of a response. plain: its short fields. echoed: the request's own fields,
        with names among those of _WITHOUT_ECHOES; an absent one keeps its default. with_hit,
        carries_reasoning: as in the class."""
        raw = {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in echoed.items()}
        brief = {**plain, **_WITHOUT_ECHOES}
        size = sum(len(bytes(value)) for value in raw.values())
        # A waiting event has them once more.
        return ResponseHead(brief, {**brief, **raw}, 2 * size, with_hit, carries_reasoning)

    @property
    def id(self) -> str:
        """Return the response's id."""
        name: str = self.whole["id"]
        return name


_KEPT_OF_LETTER = 6
"""Bytes of memory for each character of the answer: in its item, in the stored turn, and while the
last event is written."""
_KEPT_OF_TOKEN = 8
_KEPT_OF_LOGPROB = 4
"""Number of copies in memory of each logprob: in its message, in its events, and while the last
event is written."""
_NO_USAGE: dict[str, Any] = {
    **dict.fromkeys(("input_tokens", "output_tokens", "total_tokens"), 0),
    "input_tokens_details": {"cached_tokens": 0},
    "output_tokens_details": {"reasoning_tokens": 0},
}
_ERROR_CODE = {"internal": "server_error", "rate_limited": "rate_limit_exceeded"}


class ResponseWriter:
    """An AnswerWriter for OpenAI's Responses API."""

    def __init__(
        self,
        head: ResponseHead,
        parser: AnswerParser,
        tools: ResponseTools,
        logprobs: MessageLogprobs | None = None,
    ) -> None:
        """parser: splits the answer into reasoning, content and calls. tools: the client's names
        for its tools. logprobs: source of the logprobs in messages; None: messages show none."""
        self.id = head.id
        self._head = head
        self.may_complete = parser.may_complete
        self.keeps = True
        self._parser = parser
        self._tools = tools
        self._logprobs = logprobs
        self._record: TurnRecord | None = None
        """Record of the tokens and the message of this turn; None if the response is not stored."""
        self._store: Store | None = None
        self._is_answered = True
        self._number = 0
        self._kept_bytes = 0
        self._output: list[dict[str, Any]] = []
        self._open: OutputItem | None = None
        self._end: dict[str, Any] = _not_ended("in_progress")

    def keep(self, record: TurnRecord, store: Store) -> None:
        """Store the response at its end. record: record of its turn; it has only the prompt yet.
        store: function to store the response. REQUIRES: no part of the answer has arrived."""
        self._record, self._store = record, store

    def leave_unanswered(self) -> None:
        """Make ending() write a response without output. REQUIRES: the engine was asked for no
        token."""
        self._is_answered = False

    @property
    def complete(self) -> bool:
        return self._parser.complete

    @property
    def kept_bytes(self) -> int:
        """Return the bytes of memory held for the answer: its items and, if it is stored, its turn.
        Both hold the answer's text."""
        return self._kept_bytes

    def opening(self) -> bytes:
        return self._whole_event("response.created") + self.keep_alive()

    def queued_opening(self) -> bytes:
        """Return the first events of a background response. Its status is "queued" until
        leave_queue()."""
        self._end = _not_ended("queued")
        return self._whole_event("response.created") + self._brief_event("queued")

    @property
    def is_queued(self) -> bool:
        return bool(self._end["status"] == "queued")

    def leave_queue(self) -> bytes:
        """Mark a queued response as in progress, before its first segment. Return the event about
        it."""
        self._end = _not_ended("in_progress")
        return self.keep_alive()

    def piece(self, piece: Piece) -> bytes:
        if self._record is not None and piece.token is not None:
            self._record.add_token(piece.token.token)
        if self._logprobs is not None and piece.token is not None:
            self._logprobs.add(piece.token, piece.text)
        self._kept_bytes += _KEPT_OF_LETTER * len(piece.text) + _KEPT_OF_TOKEN
        return b"".join(map(self._add, self._parser.push(piece)))

    def ending(self, rest: Piece, ending: Ending) -> bytes:
        if not self._is_answered:
            return self.unanswered(ending)
        events = self.piece(rest)
        events += b"".join(map(self._add, self._parser.finish(ending)))
        is_cut = ending.reason is FinishReason.LENGTH
        events += self._close("incomplete" if is_cut else "completed")
        status = "incomplete" if is_cut else "completed"
        self._end = {
            "status": status,
            "completed_at": int(time.time()),
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "usage": self._usage(self._parser.ending(ending)),
        }
        if self._record is not None:
            self._keep(self._record.turn())
        return events + self._whole_event(f"response.{status}")

    def unanswered(self, ending: Ending | None) -> bytes:
        """Return the last event of a response without output. Store the response if keep() was
        called. ending: ending of the engine's work on the prompt; None: the prompt is empty."""
        usage = _NO_USAGE if ending is None else self._usage(self._parser.ending(ending))
        self._end = {**_not_ended("completed"), "completed_at": int(time.time()), "usage": usage}
        if self._record is not None:
            self._keep(self._record.unanswered())
        return self._whole_event("response.completed")

    def failure(self, error: Exception) -> bytes:
        refusal = error_body(error)["error"]
        code = _ERROR_CODE.get(refusal["code"], refusal["code"])
        failed = {"code": code, "message": refusal["message"]}
        self._end = {**_not_ended("failed"), "error": failed}
        return self._whole_event("response.failed")

    def cancellation(self) -> bytes:
        """Mark the response as cancelled, and return its last event."""
        self._end = _not_ended("cancelled")
        return self._whole_event("response.cancelled")

    def keep_without_answer(self) -> None:
        """Store a failed or cancelled response, if keep() was called. Its turn has the prompt's
        messages, but no answer."""
        if self._record is not None:
            self._keep(self._record.unanswered())

    def keep_alive(self) -> bytes:
        """Return a keep-alive event, because some clients wait for events and ignore comments. The
        event is short: it has no items, and none of the request's own fields."""
        return self._brief_event("in_progress")

    def whole(self) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.json.decode(self.body())
        return found

    def body(self) -> bytes:
        """Return the response as JSON, as far as it is made."""
        return msgspec.json.encode(self._whole())

    def _whole(self) -> dict[str, Any]:
        """Return the response as far as it is made. The request's own fields are msgspec.Raw."""
        return {**self._head.whole, **self._end, "output": self._output}

    def _keep(self, turn: StoredTurn) -> None:
        if self._store is not None:
            self._store(StoredResponse(self.id, self.body(), turn))

    def _usage(self, end: ChatEnding) -> dict[str, Any]:
        return response_usage(end, with_hit=self._head.with_hit)

    def _whole_event(self, kind: str) -> bytes:
        return self._event({"type": kind, "response": self._whole()})

    def _event(self, body: dict[str, Any]) -> bytes:
        number, self._number = self._number, self._number + 1
        return named_event({"type": body["type"], "sequence_number": number, **body})

    def _add(self, item: AnswerItem) -> bytes:
        if self._record is not None:
            self._record.add(item)
        if self._logprobs is not None and not isinstance(item, Content):
            self._logprobs.drop()
        match item:
            case Reasoning(text):
                return self._grow(ReasoningItem, text)
            case Content(text):
                return self._grow(MessageItem, text)
            case CallBegin(_, call_id, name):
                return self._close() + self._begin(self._call(call_id, name))
            case CallArguments(_, text):
                assert self._open is not None
                return self._in_item(self._open.grow(text))
            case CallEnd(is_cut=is_cut):
                return self._close("incomplete" if is_cut else "completed")

    def _grow(self, kind: type[ReasoningItem] | type[MessageItem], text: str) -> bytes:
        begun = b""
        if not isinstance(self._open, kind):
            carries = self._head.carries_reasoning
            begun = self._close()
            item = (
                MessageItem(self._named("msg"))
                if kind is MessageItem
                else ReasoningItem(self._named("rs"), is_carried=carries)
            )
            begun += self._begin(item)
            if self._logprobs is not None:
                self._logprobs.begin(text)
        assert self._open is not None
        if self._logprobs is not None and isinstance(self._open, MessageItem):
            logprobs = self._logprobs.of(text)
            self._kept_bytes += _KEPT_OF_LOGPROB * len(logprobs)
            self._open.score(logprobs)
        return begun + self._in_item(self._open.grow(text))

    def _call(self, call_id: str, name: str) -> OutputItem:
        named = self._tools.named(name)
        if named.is_custom:
            return CustomCallItem(self._named("ctc"), call_id, named)
        return FunctionCallItem(self._named("fc"), call_id, named)

    def _named(self, kind: str) -> str:
        """Return the id of the next output item. kind: prefix of the id. REQUIRES: no item is
        open."""
        return item_id(kind, self.id, len(self._output))

    def _brief_event(self, status: str) -> bytes:
        response = {**self._head.brief, **_not_ended(status), "output": []}
        return self._event({"type": f"response.{status}", "response": response})

    def _begin(self, item: OutputItem) -> bytes:
        self._open = item
        added = {"type": "response.output_item.added", "item": item.whole("in_progress")}
        return self._in_item([added]) + self._in_item(item.begin())

    def _close(self, status: str = "completed") -> bytes:
        item = self._open
        if item is None:
            return b""
        whole = item.whole(status)
        events = self._in_item([*item.end(), {"type": "response.output_item.done", "item": whole}])
        self._open = None
        self._output.append(whole)
        return events

    def _in_item(self, bodies: Iterable[dict[str, Any]]) -> bytes:
        """Return the events of the open item, with its index in the output. bodies: bodies of the
        events."""
        place = {"output_index": len(self._output)}
        return b"".join([self._event({**body, **place}) for body in bodies])


def _not_ended(status: str) -> dict[str, Any]:
    nothing = ("completed_at", "error", "incomplete_details", "usage")
    return {"status": status, **dict.fromkeys(nothing)}


def response_usage(end: ChatEnding, *, with_hit: bool) -> dict[str, Any]:
    """Return the `usage` of a response. with_hit: add the breakdown of the cache hit, if one is
    known."""
    usage = end.ending.usage
    hit = usage.hit
    details: dict[str, Any] = {"cached_tokens": 0 if hit is None else hit.usable_tokens}
    details |= picture_tokens([usage])
    if with_hit and hit is not None:
        details["hybrid"] = hybrid_hit(hit, usage.pictures)
    completion = end.ending.completion_tokens
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": details,
        "output_tokens": completion,
        "output_tokens_details": {"reasoning_tokens": end.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + completion,
    }
