"""What the checks need of an API."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from tasuki.cli.conformance.endpoint import Event, Reply
from tasuki.cli.conformance.outcome import Departure
from tasuki.cli.conformance.question import Answer, Question

from .bad_request import BadRequest


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
