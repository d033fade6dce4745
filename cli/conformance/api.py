"""What every API has in common: questions, answers, refusals, and how it is asked.

What any of the APIs is asked, and what it answers, in words of none of them. Plain values.

Requests that an API refuses. Pure values.

What the checks need of an API.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Protocol

from .endpoint import Event, Reply
from .outcome import Departure

DEFAULT_BOUND = 192
"""Tokens of an answer where a check needs no bound of its own."""


@dataclass(frozen=True)
class Tool:
    """schema: of its arguments, an object's."""

    name: str
    schema: Mapping[str, Any]

    @property
    def required(self) -> Sequence[str]:
        found: Sequence[str] = self.schema.get("required", ())
        return found


@dataclass(frozen=True)
class CallResult:
    """A call of an earlier turn and what its tool returned."""

    tool: str
    arguments: Mapping[str, Any]
    result: str


class Choice(Enum):
    """Which tools the model is to call."""

    AUTO = "auto"
    REQUIRED = "required"
    NAMED = "named"
    """The first of the tools."""


@dataclass(frozen=True)
class Question:
    """bound: tokens of the answer. schema: that the answer's JSON is to follow. history: turns that
    stand behind the text. fields: more of the request, as the API has them."""

    text: str
    bound: int = DEFAULT_BOUND
    tools: tuple[Tool, ...] = ()
    choice: Choice = Choice.AUTO
    stop: tuple[str, ...] = ()
    schema: Mapping[str, Any] | None = None
    history: tuple[CallResult, ...] = ()
    fields: tuple[tuple[str, Any], ...] = ()


class End(Enum):
    """Why an answer ended."""

    DONE = "by itself"
    CALLS = "with calls to run"
    LENGTH = "by its length"
    STOP = "by a stop string"


@dataclass(frozen=True)
class Call:
    """arguments: JSON text, as it came. status: of the item, where the API has one."""

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
        """Raises Departure where the arguments are no JSON object."""
        try:
            found = json.loads(self.arguments)
        except (ValueError, RecursionError) as error:
            raise Departure(f"arguments of {self.name}", "JSON", self.arguments) from error
        if not isinstance(found, dict):
            raise Departure(f"arguments of {self.name}", "an object", self.arguments)
        return found


@dataclass(frozen=True)
class Usage:
    """Tokens: of the prompt, cached ones too, and of the answer."""

    prompt: int
    answer: int


@dataclass(frozen=True)
class Answer:
    """reason: as the API names it. usage: None where a stream has none."""

    id: str
    text: str
    thought: str
    calls: tuple[Call, ...]
    end: End
    reason: str
    usage: Usage | None

    @property
    def tokens(self) -> int:
        """Of the answer. Raises Departure where the reply has no usage."""
        if self.usage is None:
            raise Departure("usage", "tokens of the answer", "none")
        return self.usage.answer

    @property
    def parts(self) -> Mapping[str, Any]:
        """All that a whole reply and its stream must have alike."""
        calls = [(call.name, call.arguments) for call in self.calls]
        return {
            "text": self.text,
            "thought": self.thought,
            "calls": calls,
            "reason": self.reason,
        }

    @property
    def trimmed(self) -> "Answer":
        """Without white space around its texts."""
        return replace(self, text=self.text.strip(), thought=self.thought.strip())


_REFUSED = frozenset({400, 422})
_NOT_FOUND = frozenset({400, 404})


@dataclass(frozen=True)
class BadRequest:
    """what: is wrong with it. body: bytes of the request. statuses: that answer it."""

    what: str
    body: bytes
    statuses: frozenset[int]


def bad_requests(
    good: Mapping[str, Any], torn: bytes, changes: Mapping[str, Mapping[str, Any]]
) -> list[BadRequest]:
    """Return the bad ones of an API. good: a body that it takes. torn: the beginning of one.
    changes: by the fault, fields with other values than in the good body; None leaves one out."""

    def changed(fields: Mapping[str, Any]) -> bytes:
        body = {**good, **fields}
        return json.dumps({key: value for key, value in body.items() if value is not None}).encode()

    return [
        BadRequest("JSON that breaks off", torn, _REFUSED),
        BadRequest("an unknown model", changed({"model": "no-such-model"}), _NOT_FOUND),
        *(BadRequest(fault, changed(fields), _REFUSED) for fault, fields in changes.items()),
    ]


class Api(Protocol):
    """name: as --api has it. path: behind the endpoint's URL."""

    name: str
    path: str

    def body(self, model: str, question: Question) -> dict[str, Any]:
        """A request for a whole reply at temperature 0."""

    def stream_body(self, model: str, question: Question) -> dict[str, Any]:
        """The same as a stream, with usage."""

    def whole(self, reply: Mapping[str, Any]) -> Answer:
        """Raises Departure where a field is missing or of another type."""

    def followed(self, events: Sequence[Event]) -> Answer:
        """What a client has at the end of a stream. Raises Departure where it can have nothing."""

    def must_be_ordered(self, events: Sequence[Event]) -> None:
        """Raises Departure where an event is not in its place or has another id."""

    def must_be_error(self, reply: Reply) -> None:
        """Raises Departure where a refusal has not the shape of the API's errors."""

    def bad_requests(self, model: str) -> Sequence[BadRequest]: ...


def of_name(table: Mapping[str, Any], what: str, name: Any) -> Any:
    """The entry of that name. Raises Departure."""
    if not isinstance(name, str) or name not in table:
        raise Departure(what, "one of " + ", ".join(table), name)
    return table[name]
