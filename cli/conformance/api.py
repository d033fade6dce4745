"""The parts common to all tested APIs: questions, answers, refusals, and the `Api` protocol.

Questions and answers are plain values, independent of any API. Bad requests are pure values.

The `Api` protocol lists the operations needed by the checks.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Protocol

from .endpoint import Event, Reply
from .outcome import Departure

DEFAULT_BOUND = 192
"""Limit of an answer in tokens, for checks without a limit of their own."""


@dataclass(frozen=True)
class Tool:
    """One tool offered to the model. schema: JSON schema of the tool's arguments, an object."""

    name: str
    schema: Mapping[str, Any]

    @property
    def required(self) -> Sequence[str]:
        found: Sequence[str] = self.schema.get("required", ())
        return found


@dataclass(frozen=True)
class CallResult:
    """A call of an earlier turn and the tool's result."""

    tool: str
    arguments: Mapping[str, Any]
    result: str


class Choice(Enum):
    """The tool choice of a question: the model decides, must call any tool, or must call a named
    one."""

    AUTO = "auto"
    REQUIRED = "required"
    NAMED = "named"
    """Tool choice: the model must call the first of the question's tools."""


@dataclass(frozen=True)
class Question:
    """One question for the model. bound: limit of the answer in tokens. schema: JSON schema for the
    answer's text. history: turns after the question's text. fields: further request fields, in the
    API's own form."""

    text: str
    bound: int = DEFAULT_BOUND
    tools: tuple[Tool, ...] = ()
    choice: Choice = Choice.AUTO
    stop: tuple[str, ...] = ()
    schema: Mapping[str, Any] | None = None
    history: tuple[CallResult, ...] = ()
    fields: tuple[tuple[str, Any], ...] = ()


class End(Enum):
    """The reason for an answer's end, in one form for all APIs."""

    DONE = "by itself"
    CALLS = "with calls to run"
    LENGTH = "by its length"
    STOP = "by a stop string"


@dataclass(frozen=True)
class Call:
    """One tool call of an answer. arguments: JSON text, as received. status: the item's status, if
    the API has one."""

    name: str
    arguments: str
    status: str = ""

    @property
    def parses(self) -> bool:
        try:
            return isinstance(json.loads(self.arguments), dict)
        except (ValueError, RecursionError):
            return False

    @property
    def value(self) -> Any:
        """Return the call's arguments, parsed. Raises Departure if they are not a JSON object."""
        try:
            found = json.loads(self.arguments)
        except (ValueError, RecursionError) as error:
            raise Departure(f"arguments of {self.name}", "JSON", self.arguments) from error
        if not isinstance(found, dict):
            raise Departure(f"arguments of {self.name}", "an object", self.arguments)
        return found


@dataclass(frozen=True)
class Usage:
    """Token counts of one request. prompt: prompt tokens, cached ones included."""

    prompt: int
    answer: int


@dataclass(frozen=True)
class Answer:
    """One answer. reason: reason of its end, in the API's own words. usage: None if a stream
    reports none."""

    id: str
    text: str
    thought: str
    calls: tuple[Call, ...]
    end: End
    reason: str
    usage: Usage | None

    @property
    def tokens(self) -> int:
        """Return the number of the answer's tokens. Raises Departure if the reply has no usage."""
        if self.usage is None:
            raise Departure("usage", "tokens of the answer", "none")
        return self.usage.answer

    @property
    def parts(self) -> Mapping[str, Any]:
        """Return the parts of an answer required to be equal in a whole reply and in its stream, by
        name."""
        calls = [(call.name, call.arguments) for call in self.calls]
        return {
            "text": self.text,
            "thought": self.thought,
            "calls": calls,
            "reason": self.reason,
        }

    @property
    def trimmed(self) -> "Answer":
        """Return the answer without white space around its text and its thought."""
        return replace(self, text=self.text.strip(), thought=self.thought.strip())


_REFUSED = frozenset({400, 422})
_NOT_FOUND = frozenset({400, 404})


@dataclass(frozen=True)
class BadRequest:
    """One bad request. what: name of its fault. body: the request body, in bytes. statuses: the
    HTTP statuses accepted in the reply."""

    what: str
    body: bytes
    statuses: frozenset[int]


def bad_requests(
    good: Mapping[str, Any], torn: bytes, changes: Mapping[str, Mapping[str, Any]]
) -> list[BadRequest]:
    """Return the bad requests of an API. good: a valid body. torn: a truncated body. changes: by
    the fault's name, the fields to set to other values than in the good body; None removes a
    field."""

    def changed(fields: Mapping[str, Any]) -> bytes:
        body = {**good, **fields}
        return json.dumps({key: value for key, value in body.items() if value is not None}).encode()

    return [
        BadRequest("JSON that breaks off", torn, _REFUSED),
        BadRequest("an unknown model", changed({"model": "no-such-model"}), _NOT_FOUND),
        *(BadRequest(fault, changed(fields), _REFUSED) for fault, fields in changes.items()),
    ]


class Api(Protocol):
    """One tested API. name: its name in --api. path: path appended to the endpoint's URL."""

    name: str
    path: str

    def body(self, model: str, question: Question) -> dict[str, Any]:
        """Return the body of a request for a whole (not streamed) reply at temperature 0."""

    def stream_body(self, model: str, question: Question) -> dict[str, Any]:
        """Return the body of the same request as in body(), as a stream with usage."""

    def whole(self, reply: Mapping[str, Any]) -> Answer:
        """Return the answer in a whole (not streamed) reply. Raises Departure if a field is missing
        or has another type."""

    def followed(self, events: Sequence[Event]) -> Answer:
        """Return the answer assembled from the events of a complete stream. Raises Departure if no
        answer can be assembled."""

    def must_be_ordered(self, events: Sequence[Event]) -> None:
        """Raise Departure if a stream's event is out of order or has an id other than its
        stream's."""

    def must_be_error(self, reply: Reply) -> None:
        """Raise Departure if a refused request's reply lacks the shape of the API's errors."""

    def bad_requests(self, model: str) -> Sequence[BadRequest]: ...


def of_name(table: Mapping[str, Any], what: str, name: Any) -> Any:
    """Return the entry of `table` called `name`. Raises Departure about `what` if there is none."""
    if not isinstance(name, str) or name not in table:
        raise Departure(what, "one of " + ", ".join(table), name)
    return table[name]
