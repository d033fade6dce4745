"""The traces of a node's requests, and their absence.

Has no part in OpenTelemetry, which is server/tracing/otel.py's. Thread rule: the event loop, but
for header(). Invariant: spans are made after the fact, from the states that a request's end
reports: a trace costs a request nothing while it runs.
"""

from typing import Protocol

from tasuki.dashboard.observed import ObservedMessage
from tasuki.engine.messages import RequestId, RoomId
from tasuki.server.auth.request_context import RequestContext


class Tracing(Protocol):
    def begin(self, request: RequestId, request_context: RequestContext) -> None:
        """Begin the span of an admitted request; the message that ends the request ends the
        span."""
        return

    def begin_room(self, room: RoomId, request: str, traceparent: str) -> None:
        """Begin the span of a prompt that another node handed to this one. traceparent: the span of
        that node's request."""
        return

    def header(self, request: RequestId) -> str:
        """The traceparent of a live request's span, to send with its hand-over; empty where the
        request is not traced. From any thread."""
        return ""

    def observe(self, message: ObservedMessage) -> None:
        """End the spans whose request or room this message ends."""
        return

    def close(self) -> None:
        """Send the spans not sent yet. May block for seconds."""
        return


class NoTracing(Tracing):
    """Traces nothing."""
