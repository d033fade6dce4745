"""What a node tells of its requests to a tracing system, and what it tells to none.

Does not know OpenTelemetry: server/tracing/otel.py does. Thread rule: the event loop, but for
header(). Invariant: spans are made after the fact, from the states that a request's end reports:
what is traced costs a request nothing while it runs.
"""

from typing import Protocol

from tasuki.dashboard.observed import ObservedMessage
from tasuki.engine.messages import RequestId, RoomId
from tasuki.server.auth.request_context import RequestContext


class Tracing(Protocol):
    def begin(self, request: RequestId, request_context: RequestContext) -> None:
        """A request was taken in; its span ends with the message that ends it."""

    def begin_room(self, room: RoomId, request: str, traceparent: str) -> None:
        """A prompt was taken in for another node's request, whose span that is."""

    def header(self, request: RequestId) -> str:
        """The traceparent of a live request's span, for whom it is handed to; empty where it is
        not traced. From any thread."""

    def observe(self, message: ObservedMessage) -> None:
        """What requests and rooms are told."""

    def close(self) -> None:
        """Send what has not been sent. May block for seconds."""


class NoTracing:
    """Tells nobody."""

    def begin(self, request: RequestId, request_context: RequestContext) -> None:
        return None

    def begin_room(self, room: RoomId, request: str, traceparent: str) -> None:
        return None

    def header(self, request: RequestId) -> str:
        return ""

    def observe(self, message: ObservedMessage) -> None:
        return None

    def close(self) -> None:
        return None
