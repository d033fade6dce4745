"""One route as an operation of OpenAPI. Pure values."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tasuki.server.fields.shapes import Fields, Schema

JSON = "application/json"
EVENTS = "text/event-stream"
HTML = "text/html"
METRICS = "text/plain"

Surface = tuple[str, str]
"""A method, and a route's pattern as server/auth/surfaces.py has it."""


@dataclass(frozen=True)
class Operation:
    """body: what is sent as JSON. answers: by media type, the schema of what comes with 200; empty
    for events, since OpenAPI 3.1 has no schema of a stream. query: by name. finds: may answer 404,
    of what its path or its body names."""

    summary: str
    tag: str
    answers: Mapping[str, Schema]
    body: Schema | None = None
    query: Fields = field(default_factory=dict)
    finds: bool = False


def in_json(schema: Schema) -> Mapping[str, Schema]:
    return {JSON: schema}


def streamed(schema: Schema) -> Mapping[str, Schema]:
    """Where the body has stream: true, events."""
    return {JSON: schema, EVENTS: {}}


def number_of(default: int, least: int, most: int) -> Schema:
    return {"type": "integer", "minimum": least, "maximum": most, "default": default}
