"""The traces of a node's requests: sent to a collector, or not made at all.

Independent of OpenTelemetry. server/otel.py uses it, and is imported only if an endpoint is set.
Thread rule: the event loop; any thread for header(). Invariant: spans are made afterwards, from the
phases reported at a request's end. A trace costs a running request nothing.
"""

import importlib.util
from typing import Protocol

from tasuki.dashboard.observed import ObservedMessage
from tasuki.engine.messages import RequestId, TransferId
from tasuki.server.auth.tenants import RequestContext


class Tracing(Protocol):
    def begin(self, request: RequestId, request_context: RequestContext) -> None:
        """Begin the trace span of an admitted request. The request's last message ends the span."""
        return

    def begin_transfer(self, transfer_id: TransferId, request: str, traceparent: str) -> None:
        """Begin the trace span of a prompt handed to this node by another node. traceparent: span
        of the other node's request."""
        return

    def header(self, request: RequestId) -> str:
        """Return the traceparent of a live request's span, for its hand-over; empty if the request
        is not traced. From any thread."""
        return ""

    def observe(self, message: ObservedMessage) -> None:
        """End the trace span of the request or transfer ended by this message, if any."""
        return

    def close(self) -> None:
        """Send the spans not sent yet to the collector. May block for seconds."""
        return


class NoTracing(Tracing):
    """Tracing without any effect."""


class TracingUnavailable(RuntimeError):
    """Traces are requested and cannot be sent. The message has the fix."""


def open_tracing(endpoint: str, node: str, role: str, model: str) -> Tracing:
    """Return the tracing of a node. endpoint: an OTLP collector; empty: no tracing. node, role,
    model: attributes of each span. Raises TracingUnavailable."""
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
