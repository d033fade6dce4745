"""The traces of a node's requests, and their absence: to a collector, or nowhere.

Has no part in OpenTelemetry, which is server/otel.py's, and imported only where an endpoint
is set. Thread rule: the event loop, but
for header(). Invariant: spans are made after the fact, from the states that a request's end
reports: a trace costs a request nothing while it runs.
"""

import importlib.util
from typing import Protocol

from tasuki.dashboard.observed import ObservedMessage
from tasuki.engine.messages import RequestId, RoomId
from tasuki.server.auth.tenants import RequestContext


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


class TracingUnavailable(RuntimeError):
    """Traces are wanted and cannot be sent; the message has the mend."""


def open_tracing(endpoint: str, node: str, role: str, model: str) -> Tracing:
    """endpoint: of an OTLP collector; empty: no tracing. node, role, model: attributes of
    each span. Raises TracingUnavailable."""
    if not endpoint:
        return NoTracing()
    if not endpoint.startswith(("http://", "https://")):
        raise TracingUnavailable(
            f"otlp_endpoint {endpoint!r} is no URL: write for example http://127.0.0.1:4317"
        )
    if importlib.util.find_spec("opentelemetry") is None:
        raise TracingUnavailable(
            "otlp_endpoint needs OpenTelemetry: install it with pip install 'tasuki[otel]'"
        )
    from .otel import OtelTracing

    return OtelTracing(endpoint, node, role, model)
